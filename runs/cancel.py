"""Ending a run: the wish is in the ledger before the scheduler hears of it."""

from __future__ import annotations

from hibali.errors import TryLaterError
from hibali.text import printable
from runs.book import Book
from runs.follow import update
from runs.run import Run
from runs.scheduler import Scheduler
from runs.sweeps.cancel import cancel_sweep
from transfers.far import Far


def cancel_run(far: Far, scheduler: Scheduler, book: Book, run: Run) -> Run:
    """The run after the scheduler was told, and asked once; a job that is over keeps its end.

    Raises `TryLaterError` where the run was never submitted or the scheduler did not take the wish.
    """
    if run.sweep is not None and run.sweep.chunks:
        run = cancel_sweep(far, scheduler, book, run)
        return update(far, scheduler, book, [run])[0]
    if not run.job:
        raise TryLaterError(
            "not-submitted",
            "this run was never submitted, so there is nothing to end",
            about=run.id,
            hint="It starts only when its `hibali run` line is typed again.",
            transient=False,
        )
    run = book.note(run.id, "cancel")
    finished = far.run(scheduler.cancel_words(run.job))
    if finished.exit_code != 0:
        said = printable(finished.stderr.strip()[-500:])
        raise TryLaterError("not-cancelled", f"the scheduler did not end the job: {said}", about=run.id)
    return update(far, scheduler, book, [run])[0]
