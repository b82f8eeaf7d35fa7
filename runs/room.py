"""Room in a site's queue: taken before a submission, and looked for where there seems to be none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from hibali.errors import NotFoundError, TryLaterError
from runs.book import Book
from runs.heard import update
from runs.queued import Queued, holder_of
from runs.run import Run
from runs.scheduler import NotSubmitted, Scheduler, Submitted
from runs.submit import find_submission
from transfers.far import Far


def take_room(
    far: Far,
    scheduler: Scheduler,
    book: Book,
    run: Run,
    limit: int,
    *,
    chunk: int = 0,
    places: int = 1,
    note: Callable[[], object],
    look: bool = True,
) -> bool:
    """Whether a run, or the job array of a chunk, has its places in the queue now.

    `note` puts into the ledger that it is going to be submitted, before anybody else counts. Without room, and unless `look` says
    that this was done just now, the site is asked once how far the others are: nobody may have looked since they ended.
    """
    queued = Queued(run.site)
    holder = holder_of(run.id, chunk)
    if queued.take(holder, places, limit, taken=note):
        return True
    holders = _load(book, queued)
    if look:
        asked = [each for each in holders if each.job and each.scheduler == scheduler.name]
        update(far, scheduler, book, [each for each in asked if not each.state.ended])
    for each in holders:
        if each.sweep is None and not each.job and each.submitting:
            _settle_begun(far, scheduler, book, queued, each.id)
    # a place is taken and the submission noted in one turn: who holds one without the other died between
    queued.forget_dead(lambda run_id: _holds(book, run_id))
    return queued.take(holder, places, limit, taken=note)


def _load(book: Book, queued: Queued) -> list[Run]:
    holders = []
    for run_id in queued.runs():
        with contextlib.suppress(NotFoundError):
            holders.append(book.load(run_id))
    return holders


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
