"""Open the sites of runs, and query the state and resource usage of runs there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from hibali.config.model import Site
from hibali.config.settings import require_built_for_runs
from hibali.errors import HibaliError
from hibali.events import Listener
from hibali_cli.options import Common
from runs.model import Run
from runs.store import RunStore

# `hibali runs list` imports this module: what contacts a site is imported when a site is contacted.
if TYPE_CHECKING:
    from transfers.remote.host import RemoteHost


def run_site(common: Common, name: str) -> Site:
    """Return the site of a run, if runs are possible there; raises `UsageError`."""
    site = common.settings().site(name)
    require_built_for_runs(site)
    return site


def opener(site: Site, on_event: Listener) -> Callable[[], RemoteHost]:
    """Return a function that connects to the machine at a site."""
    from runs.rate_limits import open_limited_host  # start-up: only where a site is contacted

    return lambda: open_limited_host(site, on_event)


def fetch_usage(common: Common, run_store: RunStore, run: Run, on_event: Listener) -> Run:
    """Record the accounting data of a run that has ended, unless it is known; return the updated run."""
    from runs.monitor import note_usage  # start-up: only where a site is contacted
    from runs.schedulers.base import load_scheduler  # start-up: only where a site is contacted

    scheduler = load_scheduler(run.placement.scheduler)
    if (
        not run.state.final
        or run.results.accounted
        or not scheduler.accounting_argv((run.job,), "", run.created[:10])
    ):
        return run
    with contextlib.suppress(HibaliError):
        host = opener(run_site(common, run.site), on_event)()
        try:
            note_usage(host, scheduler, run_store, [run])
        finally:
            host.close()
    return run_store.load(run.id)


def update_runs(
    common: Common, run_store: RunStore, runs: list[Run], on_event: Listener, *, submit_next: bool = False
) -> list[Run]:
    """Query each site once; a run keeps its recorded state if its site cannot be reached, with a warning.

    With `submit_next` a pilot whose allocation has ended gets the next one.
    """
    from runs.poll import update  # start-up: only where a site is contacted
    from runs.queue_limits import can_submit_more, submit_more  # start-up: only where a site is contacted
    from runs.schedulers.base import load_scheduler  # start-up: only where a site is contacted

    fresh = {run.id: run for run in runs}
    active = [run for run in runs if run.job and not run.state.final]
    for name, scheduler in sorted({(run.site, run.placement.scheduler) for run in active}):
        group = [run for run in active if (run.site, run.placement.scheduler) == (name, scheduler)]
        try:
            host = opener(run_site(common, name), on_event)()
            try:
                fresh |= {run.id: run for run in update(host, load_scheduler(scheduler), run_store, group)}
                limits = run_site(common, name).limits
                for run in [fresh[each.id] for each in group if submit_next]:
                    if run.sweep is not None and run.sweep.pilot is not None and can_submit_more(run):
                        fresh[run.id] = submit_more(
                            host, load_scheduler(scheduler), run_store, run, limits, on_event
                        )
            finally:
                host.close()
        except HibaliError as problem:
            common.output.warn(f"{name} could not be queried: {problem.message}")
    return [fresh[run.id] for run in runs]
