"""Sending a run to its scheduler: within the site's budget, once, and not against a wish to end it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from hibali.errors import NotFoundError, TryLaterError
from hibali.events import Listener, ignore
from hibali.sites import Limits
from runs.book import Book
from runs.budget import count_queued, say_full
from runs.courtesy import courteous
from runs.follow import update
from runs.queued import Queued
from runs.run import Run
from runs.scheduler import NotSubmitted, Scheduler, Submitted
from runs.submit import Submission, find_submission, submit_once
from runs.unsubmitted import end_begun, end_unbegun
from transfers.far import Far


def send(
    far: Far,
    scheduler: Scheduler,
    book: Book,
    run: Run,
    *,
    words: Sequence[str],
    put: Callable[[], None],
    limits: Limits,
    tell: Listener = ignore,
) -> Run:
    """The run with its job; or still waiting where there is no room (`Run.waits`), or CANCELLED where that was wished.

    `words` submit it, `put` lays everything ready. Whoever calls has the run's turn (Book.claim). Raises what
    the scheduler refuses with.
    """
    run = book.load(run.id)
    if run.job or run.state.ended:
        return run
    if run.cancelled:
        return end_begun(far, scheduler, book, run) if run.submitting else end_unbegun(book, run)
    queued = Queued(run.site)
    if not _take_place(far, scheduler, book, queued, run, limits.queued_jobs):
        put()
        reason = say_full(limits.queued_jobs, count_queued(queued.held()))
        if run.waits and run.reason == reason:
            return run
        return book.note(run.id, "waits", {"reason": reason, "words": list(words)})
    submission = Submission(run.id, run.folder, tuple(words), run.created[:10], put, begun=run.submitting)
    with courteous(run.site):
        answer = submit_once(far, scheduler, submission, settling=limits.settling_seconds, tell=tell)
        if isinstance(answer, NotSubmitted):
            queued.release(run.id)
            raise answer.error
    return book.note(run.id, "submitted", {"job": answer.job})


def send_waiting(
    far: Far, scheduler: Scheduler, book: Book, run: Run, limits: Limits, tell: Listener = ignore
) -> Run:
    """The same for a run that waited for room: everything lies ready at the site."""
    with book.claim(run.key, tell=tell):
        run = book.load(run.id)
        if not run.waits:
            return run
        return send(far, scheduler, book, run, words=run.words, put=lambda: None, limits=limits, tell=tell)


def no_room(run: Run) -> TryLaterError:
    """What a caller is told who does not wait."""
    return TryLaterError(
        "no-room",
        run.reason,
        about=run.id,
        hint=f"The same line again, or `hibali runs wait {run.id}`, sends it when there is room.",
    )


def _take_place(far: Far, scheduler: Scheduler, book: Book, queued: Queued, run: Run, limit: int) -> bool:
    def begin() -> None:
        book.note(run.id, "submitting")

    if queued.take(run.id, 1, limit, taken=begin):
        return True
    _look_who_left(far, scheduler, book, queued)
    return queued.take(run.id, 1, limit, taken=begin)


def _look_who_left(far: Far, scheduler: Scheduler, book: Book, queued: Queued) -> None:
    """Ask once how far the runs are that hold places: nobody may have looked since they ended."""
    holders: dict[str, Run] = {}
    for run_id in queued.runs():
        with contextlib.suppress(NotFoundError):
            holders[run_id] = book.load(run_id)
    asked = [each for each in holders.values() if each.job and each.scheduler == scheduler.name]
    update(far, scheduler, book, [each for each in asked if not each.state.ended])
    begun = [each.id for each in holders.values() if not each.job and each.submitting]
    for run_id in begun:
        _settle_begun(far, scheduler, book, queued, run_id)
    # a place is taken and the submission noted in one turn: who holds one without the other died between
    queued.forget_dead(lambda run_id: _holds(book, run_id))


def _holds(book: Book, run_id: str) -> bool:
    try:
        run = book.load(run_id)
    except NotFoundError:
        return False
    return not run.state.ended and (bool(run.job) or run.submitting)


def _settle_begun(far: Far, scheduler: Scheduler, book: Book, queued: Queued, run_id: str) -> None:
    """Find out what became of a submission whose process is gone; one that is at work keeps its place."""
    with contextlib.suppress(TryLaterError), book.claim(book.load(run_id).key, longest_wait=0.0):
        run = book.load(run_id)
        if run.job or run.state.ended:
            return
        found = find_submission(far, scheduler, run.id, run.folder, run.created[:10])
        if isinstance(found, Submitted):
            book.note(run.id, "submitted", {"job": found.job})
        elif isinstance(found, NotSubmitted):
            queued.release(run.id)
