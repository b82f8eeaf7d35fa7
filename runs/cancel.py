"""Ending a run: the wish is in the ledger and at the site before the scheduler hears of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from hibali.errors import HibaliError, TryLaterError
from hibali.events import Listener, ignore
from hibali.ledger import now
from hibali.text import printable
from runs.book import Book
from runs.heard import update
from runs.job_proxy import remove_proxy
from runs.run import Run
from runs.scheduler import Scheduler
from runs.sweeps.cancel import end_jobs, give_up_unsent
from runs.unsubmitted import end_begun, end_unbegun
from transfers.far import Far


def cancel_run(
    open_far: Callable[[], Far],
    scheduler: Scheduler,
    book: Book,
    run: Run,
    tell: Listener = ignore,
) -> Run:
    """The run after the scheduler was told, and asked once; one that is over, and each task that is, keeps its end.

    A run that nobody submitted is CANCELLED at once, and its site is not asked. One that is being launched is ended by
    whoever launches it, who is waited for. Raises `TryLaterError` where the scheduler did not take the wish.
    """
    if run.state.final:
        return run
    run = book.note(run.id, "cancel")
    if not run.job or (run.sweep is not None and run.sweep.unsent()):
        with book.claim(run.key, tell=tell):
            run = _give_up(open_far, scheduler, book, book.load(run.id))
    if run.state.final:
        return run
    with contextlib.closing(open_far()) as far:
        if _mark(far, run):
            run = book.note(run.id, "cancel", {"marked": True})
        if run.sweep is not None:
            end_jobs(far, scheduler, run)
        else:
            _end_job(far, scheduler, run)
        run = book.note(run.id, "cancel-told")
        return update(far, scheduler, book, [run])[0]


def _give_up(open_far: Callable[[], Far], scheduler: Scheduler, book: Book, run: Run) -> Run:
    """The run after whatever of it has no job will never have one."""
    if run.state.ended:
        return run
    if not run.submitting and not run.job:
        if run.proxy and run.folder:  # it lies ready, and waits for room in the queue
            with contextlib.closing(open_far()) as far:
                remove_proxy(far, run)
        return end_unbegun(book, run)
    if run.sweep is not None and run.sweep.unsent():
        with contextlib.closing(open_far()) as far:
            return give_up_unsent(far, book, run)
    if run.sweep is None and not run.job:
        with contextlib.closing(open_far()) as far:
            return end_begun(far, scheduler, book, run)
    return run


def _end_job(far: Far, scheduler: Scheduler, run: Run) -> None:
    finished = far.run(scheduler.cancel_words(run.job))
    if finished.exit_code != 0:
        said = printable(finished.stderr.strip()[-500:])
        raise TryLaterError("not-cancelled", f"the scheduler did not end the job: {said}", about=run.id)


def _mark(far: Far, run: Run) -> bool:
    """Let the job itself see the wish, so that it does not take for its own end what a signal did to its tool.

    A site that is full must not keep a job running: without the mark, the scheduler's word decides.
    """
    try:
        far.put(run.folder + b"/cancel", now().encode("ascii") + b"\n")
    except TryLaterError:
        raise
    except HibaliError:
        return False
    return True
