"""What the run commands ask of sites: opening them, following runs there, moving files there and back."""

from __future__ import annotations

from collections.abc import Callable

from hibali.errors import HibaliError
from hibali.events import Listener
from hibali.settings import require_built_for_runs
from hibali.sites import Site
from hibali_cli.options import Common
from runs.book import Book
from runs.courtesy import reach
from runs.follow import wait_for_end
from runs.heard import update
from runs.run import Run
from runs.scheduler import load_scheduler
from transfers.far import Far


def run_site(common: Common, name: str) -> Site:
    """The site of a run, if runs can be there; raises `UsageError`."""
    site = common.settings().site(name)
    require_built_for_runs(site)
    return site


def opener(site: Site, tell: Listener) -> Callable[[], Far]:
    """How to reach the machine at a site, as often as needed."""
    return lambda: reach(site, tell)


def wait_for_runs(common: Common, book: Book, runs: list[Run], tell: Listener) -> list[Run]:
    """Follow until all have ended, one site after the other; the runs as they are then."""
    ended: dict[str, Run] = {}
    for name, scheduler in sorted({(run.site, run.scheduler) for run in runs}):
        site = run_site(common, name)
        ids = [run.id for run in runs if (run.site, run.scheduler) == (name, scheduler)]
        found = wait_for_end(
            opener(site, tell),
            load_scheduler(scheduler),
            book,
            ids,
            limits=site.limits,
            tell=tell,
            changed=lambda run: common.output.detail(f"{run.id} {run.state} {run.native}".rstrip()),
        )
        ended |= {run.id: run for run in found}
    return [ended[run.id] for run in runs]


def update_runs(common: Common, book: Book, runs: list[Run], tell: Listener) -> list[Run]:
    """Ask each site once; what cannot be asked now stays as the ledger has it, and a person is told."""
    fresh = {run.id: run for run in runs}
    asked = [run for run in runs if run.job and not run.state.final]
    for name, scheduler in sorted({(run.site, run.scheduler) for run in asked}):
        some = [run for run in asked if (run.site, run.scheduler) == (name, scheduler)]
        try:
            far = opener(run_site(common, name), tell)()
            try:
                fresh |= {run.id: run for run in update(far, load_scheduler(scheduler), book, some)}
            finally:
                far.close()
        except HibaliError as problem:
            common.output.warn(f"{name} was not asked: {problem.message}")
    return [fresh[run.id] for run in runs]
