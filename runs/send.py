"""Sending a run to its scheduler: within the site's budget, once, and not against a wish to end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hibali.errors import TryLaterError
from hibali.events import Listener, ignore
from hibali.sites import Limits
from runs.book import Book
from runs.budget import count_queued, say_full
from runs.courtesy import courteous
from runs.queued import Queued
from runs.room import take_room
from runs.run import Run
from runs.scheduler import NotSubmitted, Scheduler
from runs.submit import Submission, submit_once
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
    look: bool = True,
) -> Run:
    """The run with its job; or still waiting where there is no room (`Run.waits`), or CANCELLED where that was wished.

    `words` submit it, `put` lays everything ready; `look` as `take_room` has it. Whoever calls has the run's turn
    (Book.claim). Raises what the scheduler refuses with.
    """
    run = book.load(run.id)
    if run.job or run.state.ended:
        return run
    if run.cancelled:
        return end_begun(far, scheduler, book, run) if run.submitting else end_unbegun(book, run)
    begin = partial(book.note, run.id, "submitting")
    if not take_room(far, scheduler, book, run, limits.queued_jobs, note=begin, look=look):
        put()
        return _wait(book, run, words, limits.queued_jobs)
    submission = Submission(run.id, run.folder, tuple(words), run.created[:10], put, begun=run.submitting)
    with courteous(run.site):
        answer = submit_once(far, scheduler, submission, settling=limits.settling_seconds, tell=tell)
        if isinstance(answer, NotSubmitted):
            Queued(run.site).release(run.id)
            raise answer.error
    return book.note(run.id, "submitted", {"job": answer.job})


def _wait(book: Book, run: Run, words: Sequence[str], limit: int) -> Run:
    reason = say_full(limit, count_queued(Queued(run.site).held()))
    if run.waits and run.reason == reason:
        return run
    return book.note(run.id, "waits", {"reason": reason, "words": list(words)})


def send_waiting(
    far: Far,
    scheduler: Scheduler,
    book: Book,
    run: Run,
    limits: Limits,
    tell: Listener = ignore,
    *,
    look: bool = True,
) -> Run:
    """The same for a run that waited for room: everything lies ready at the site."""
    with book.claim(run.key, tell=tell):
        run = book.load(run.id)
        if not run.waits:
            return run
        return send(
            far,
            scheduler,
            book,
            run,
            words=run.words,
            put=_nothing,
            limits=limits,
            tell=tell,
            look=look,
        )


def _nothing() -> None:
    """It lies ready."""


def no_room(run: Run) -> TryLaterError:
    """What a caller is told who does not wait."""
    return TryLaterError(
        "no-room",
        run.reason,
        about=run.id,
        hint=f"The same line again, or `hibali runs wait {run.id}`, sends it when there is room.",
    )
