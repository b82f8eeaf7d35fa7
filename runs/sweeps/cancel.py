"""Ending a sweep: what was not submitted never is, and each of its jobs is ended."""

from __future__ import annotations

from collections.abc import Iterable

from hibali.errors import TryLaterError
from hibali.ranges import write_ranges
from hibali.text import printable
from runs.book import Book
from runs.job_proxy import remove_proxy
from runs.queued import Queued, holder_of
from runs.run import Run, State
from runs.scheduler import Scheduler
from runs.sweeps.sweep import chunk_folder, sweep_of
from transfers.far import Far


def give_up_unsent(far: Far, book: Book, run: Run) -> Run:
    """The sweep after the wish to end it is in the ledger: what was not submitted never is.

    Whoever calls has the run's turn (Book.claim). Raises `TryLaterError` where a job was begun to be submitted and nobody knows
    whether it was.
    """
    unsent = sweep_of(run).unsent()
    if any(far.stat(chunk_folder(run, chunk) + b"/submit") is not None for chunk in unsent):
        raise TryLaterError(
            "submission-unclear",
            "a job of this sweep was begun to be submitted, and nobody has noted whether it was",
            about=run.id,
            hint="Type its `hibali run` line again, which finds out; then cancel it.",
            transient=False,
        )
    numbers = [number for chunk in unsent for number in chunk.tasks]
    for number in numbers if run.proxy else ():
        remove_proxy(far, run, number)
    return give_up(book, run, numbers)


def end_jobs(far: Far, scheduler: Scheduler, run: Run) -> None:
    """Tell the scheduler to end the jobs of a sweep; raises `TryLaterError` where it did not take that."""
    for chunk in sweep_of(run).chunks:
        if all(sweep_of(run).tasks[number].state.final for number in chunk.tasks):
            continue
        for job in chunk.jobs:
            finished = far.run(scheduler.cancel_words(job))
            if finished.exit_code != 0:
                said = printable(finished.stderr.strip()[-500:])
                raise TryLaterError(
                    "not-cancelled", f"the scheduler did not end the job {job}: {said}", about=run.id
                )


def give_up(book: Book, run: Run, numbers: Iterable[int]) -> Run:
    """The sweep after these tasks of it were never submitted."""
    doomed = sorted(numbers)
    if not doomed:
        return run
    change = {
        "state": State.CANCELLED,
        "native": "",
        "reason": "it was never submitted",
        "tasks": write_ranges(doomed),
    }
    run = book.note(run.id, "tasks", {"changes": [change], "ends": []})
    for chunk in sweep_of(run).chunks:
        if not chunk.jobs:
            Queued(run.site).keep(holder_of(run.id, chunk.number), 0)
    return run
