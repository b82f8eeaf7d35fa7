"""Letting go a run that was submitted on hold: the wish is in the ledger before the scheduler hears of it."""

from __future__ import annotations

from hibali.errors import RefusedError, TryLaterError, UsageError
from hibali.text import printable
from runs.book import Book
from runs.heard import update
from runs.run import Run, State
from runs.scheduler import Scheduler
from transfers.far import Far

_IN_QUEUE = frozenset({State.SUBMITTED, State.WAITING})


def release_run(far: Far, scheduler: Scheduler, book: Book, run: Run) -> Run:
    """The run after the scheduler was told, and asked once; one that was let go before is let go.

    Raises `UsageError` for a run that was not begun on hold, `RefusedError` for one that has ended, `TryLaterError` where it was
    never submitted or the scheduler did not take the wish.
    """
    check_releasable(run)
    run = update(far, scheduler, book, [run])[0]
    check_releasable(run)
    if run.state not in _IN_QUEUE:
        return book.note(run.id, "released") if not run.released else run
    book.note(run.id, "release")
    finished = far.run(scheduler.release_words(run.job))
    if finished.exit_code != 0 and update(far, scheduler, book, [run])[0].state in _IN_QUEUE:
        said = printable(finished.stderr.strip()[-500:])
        raise TryLaterError("not-released", f"the scheduler did not let the job go: {said}", about=run.id)
    return update(far, scheduler, book, [book.note(run.id, "released")])[0]


def check_releasable(run: Run) -> None:
    """Raise where there is nothing to let go; see `release_run`."""
    if not run.hold:
        raise UsageError(
            "not-on-hold",
            "this run was not begun on hold",
            about=run.id,
            hint=f"hibali runs show {run.id}",
        )
    if run.state.final:
        raise RefusedError("run-ended", f"the run has ended: it is {run.state}", about=run.id)
    if not run.job:
        raise TryLaterError(
            "not-submitted",
            "this run was never submitted, so there is nothing to let go",
            about=run.id,
            hint="Type its `hibali run` line again; it goes on from there.",
            transient=False,
        )
