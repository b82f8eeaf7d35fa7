"""Ending a run that has no job: nothing has to be told to a scheduler, as long as no job of it can ever begin."""

from __future__ import annotations

from hibali.errors import TryLaterError
from hibali.retry import growing_intervals, pause
from runs.book import Book
from runs.job_proxy import remove_proxy
from runs.run import Run, State
from runs.scheduler import Scheduler, Submitted
from runs.submit import find_job, find_submission
from runs.sweeps.cancel import give_up
from runs.verdict import Seen
from transfers.far import Far

_PATIENCE_SECONDS = 5.0


def end_unbegun(book: Book, run: Run) -> Run:
    """The run, CANCELLED: nobody had begun to submit it. Whoever calls has its turn (Book.claim)."""
    if run.sweep is not None:
        return give_up(book, run, run.sweep.tasks)
    seen = Seen(State.CANCELLED, "", "cancelled before it was submitted")
    return book.note(run.id, "seen", seen.to_fields())


def end_begun(far: Far, scheduler: Scheduler, book: Book, run: Run) -> Run:
    """The run whose submission was begun and not answered: with its job, where it has one, else CANCELLED.

    A job may still turn up: so its one turn is taken from here, and it will do nothing. Raises `TryLaterError` where a job
    took the turn first and does not say which it is. Whoever calls has the run's turn (Book.claim).
    """
    found = find_submission(far, scheduler, run.id, run.folder, run.created[:10])
    if isinstance(found, Submitted):
        return book.note(run.id, "submitted", {"job": found.job})
    if far.make_folder(run.folder + b"/started", exclusive=True):
        remove_proxy(far, run)
        seen = Seen(State.CANCELLED, "", "cancelled before a job of it began")
        return book.note(run.id, "seen", seen.to_fields())
    intervals = growing_intervals(0.1, 1.0)
    waited = 0.0
    while (job := find_job(far, run.folder)) is None:
        if waited >= _PATIENCE_SECONDS:
            raise TryLaterError(
                "submission-unclear", "a job of this run began, and does not say which it is", about=run.id
            )
        seconds = intervals.next_pause()
        pause(seconds)
        waited += seconds
    return book.note(run.id, "submitted", {"job": job})
