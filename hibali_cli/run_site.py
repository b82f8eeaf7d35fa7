"""What the run commands ask of sites: opening them, following runs there, moving files there and back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hibali.config.model import Site
from hibali.config.settings import require_built_for_runs
from hibali.errors import HibaliError, TryLaterError
from hibali.events import Listener
from hibali.retry import pause
from hibali_cli.options import Common
from runs.model import Run, ignore_run
from runs.monitor import Watching, note_usage, wait_for_end
from runs.poll import update
from runs.rate_limits import reach
from runs.schedulers.base import load_scheduler
from runs.store import Book
from runs.sweeps.send import go_on, goes_on
from transfers.remote.host import Far

LOOK_SECONDS = 0.2  # between two looks at the ledger


def run_site(common: Common, name: str) -> Site:
    """The site of a run, if runs can be there; raises `UsageError`."""
    site = common.settings().site(name)
    require_built_for_runs(site)
    return site


def opener(site: Site, tell: Listener) -> Callable[[], Far]:
    """How to reach the machine at a site, as often as needed."""
    return lambda: reach(site, tell)


def wait_for_runs(
    common: Common,
    book: Book,
    runs: list[Run],
    tell: Listener,
    *,
    changed: Callable[[Run], None] = ignore_run,
) -> list[Run]:
    """Follow until all have ended, all sites at once; the runs as they are then. `changed` hears of each, whenever that is."""
    from hibali_cli.run_progress import following

    parts = by_site(common, runs)
    with following(common, book, runs, tell) as shown:

        def take(run: Run) -> None:
            shown.changed(run)
            changed(run)

        if len(parts) == 1:
            _follow(common, book, parts[0], opener(parts[0].site, shown.tell), shown.tell, take)
        elif parts:
            watching = follow_all(common, book, runs, parts, shown.tell, take)
            while not watching.is_over:
                pause(LOOK_SECONDS)
            for problem in watching.problems:
                raise problem
    ended = [book.load(run.id) for run in runs]
    for run in ended:
        changed(run)
    return ended


class AtSite(NamedTuple):
    """Runs of one site and scheduler, which are asked about together."""

    site: Site
    scheduler: str
    run_ids: list[str]


def by_site(common: Common, runs: list[Run]) -> list[AtSite]:
    """The runs whose end is not known. Raises `UsageError` for a site that is not there any more."""
    open_runs = [run for run in runs if not run.state.final]
    return [
        AtSite(run_site(common, name), scheduler, [run.id for run in open_runs if _place(run) == place])
        for place in sorted({_place(run) for run in open_runs})
        for name, scheduler in [place]
    ]


def _place(run: Run) -> tuple[str, str]:
    return run.site, run.scheduler


def follow_all(
    common: Common,
    book: Book,
    runs: list[Run],
    parts: list[AtSite],
    tell: Listener,
    changed: Callable[[Run], None] = ignore_run,
) -> Watching:
    """Follow all of them in the background. Logins are made before that, one after the other: they may ask something."""
    openers = [_opened_first(opener(part.site, tell)) for part in parts]
    follow = [
        partial(_follow, common, book, part, open_far, tell, changed)
        for part, open_far in zip(parts, openers, strict=True)
    ]
    return Watching(book, [run.id for run in runs], follow)


def _follow(
    common: Common,
    book: Book,
    part: AtSite,
    open_far: Callable[[], Far],
    tell: Listener,
    changed: Callable[[Run], None],
) -> None:
    def take(run: Run) -> None:
        common.output.detail(f"{run.id} {run.state} {run.native}".rstrip())
        changed(run)

    wait_for_end(
        open_far,
        load_scheduler(part.scheduler),
        book,
        part.run_ids,
        limits=part.site.limits,
        tell=tell,
        changed=take,
    )


def _opened_first(open_site: Callable[[], Far]) -> Callable[[], Far]:
    """The same, opened already for the first time; a site that cannot be reached now is tried again by whoever follows."""
    first = []
    with contextlib.suppress(TryLaterError):
        first.append(open_site())
    return lambda: first.pop() if first else open_site()


def ask_usage(common: Common, book: Book, run: Run, tell: Listener) -> Run:
    """What accounting tells by now of a run that ended, if nobody has got its answer yet; the run as it is then."""
    scheduler = load_scheduler(run.scheduler)
    if (
        not run.state.final
        or run.accounted
        or not scheduler.accounting_words((run.job,), "", run.created[:10])
    ):
        return run
    with contextlib.suppress(HibaliError):
        far = opener(run_site(common, run.site), tell)()
        try:
            note_usage(far, scheduler, book, [run])
        finally:
            far.close()
    return book.load(run.id)


def update_runs(
    common: Common, book: Book, runs: list[Run], tell: Listener, *, going_on: bool = False
) -> list[Run]:
    """Ask each site once; what cannot be asked now stays as the ledger has it, and a person is told.

    With `going_on` a pilot whose allocation is over goes on in the next one.
    """
    fresh = {run.id: run for run in runs}
    asked = [run for run in runs if run.job and not run.state.final]
    for name, scheduler in sorted({(run.site, run.scheduler) for run in asked}):
        some = [run for run in asked if (run.site, run.scheduler) == (name, scheduler)]
        try:
            far = opener(run_site(common, name), tell)()
            try:
                fresh |= {run.id: run for run in update(far, load_scheduler(scheduler), book, some)}
                limits = run_site(common, name).limits
                for run in [fresh[each.id] for each in some if going_on]:
                    if run.sweep is not None and run.sweep.pilot is not None and goes_on(run):
                        fresh[run.id] = go_on(far, load_scheduler(scheduler), book, run, limits, tell)
            finally:
                far.close()
        except HibaliError as problem:
            common.output.warn(f"{name} was not asked: {problem.message}")
    return [fresh[run.id] for run in runs]
