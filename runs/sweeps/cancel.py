"""Ending a sweep: what was not submitted never is, and each of its jobs is ended."""

from __future__ import annotations

from collections.abc import Sequence

from hibali.errors import TryLaterError
from hibali.ranges import write_ranges
from hibali.text import printable
from runs.book import Book
from runs.run import Run, State
from runs.scheduler import Scheduler
from runs.sweeps.sweep import Chunk, chunk_folder, sweep_of
from transfers.far import Far


def cancel_sweep(far: Far, scheduler: Scheduler, book: Book, run: Run) -> Run:
    """The sweep after the scheduler was told to end its jobs; tasks that are over keep their end.

    The wish is in the ledger before, so that nobody submits more. Raises `TryLaterError` where the scheduler did not take it, or where
    a job was begun to be submitted and nobody knows whether it was.
    """
    run = book.note(run.id, "cancel")
    sweep = sweep_of(run)
    begun = [chunk for chunk in sweep.unsent() if far.stat(chunk_folder(run, chunk) + b"/submit") is not None]
    if begun:
        raise TryLaterError(
            "submission-unclear",
            "a job of this sweep was begun to be submitted, and nobody has noted whether it was",
            about=run.id,
            hint="Type its `hibali run` line again, which finds out; then cancel it.",
            transient=False,
        )
    run = _give_up(book, run, sweep.unsent())
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
    return run


def _give_up(book: Book, run: Run, chunks: Sequence[Chunk]) -> Run:
    numbers = [number for chunk in chunks for number in chunk.tasks]
    if not numbers:
        return run
    change = {
        "state": State.CANCELLED,
        "native": "",
        "reason": "it was never submitted",
        "tasks": write_ranges(numbers),
    }
    return book.note(run.id, "tasks", {"changes": [change], "ends": []})
