"""Going on after an allocation that ended before its tasks did: the next one is noted and submitted once, by whoever looks first."""

from __future__ import annotations

from hibali.events import Listener, Noted, ignore
from hibali.ranges import write_ranges
from hibali.sites import Limits
from runs.book import Book
from runs.queued import Queued, holder_of
from runs.run import Run
from runs.scheduler import Scheduler
from runs.submit import find_job
from runs.sweeps.send import send_chunks
from runs.sweeps.sweep import chunk_folder, sweep_of
from transfers.far import Far


def goes_on(run: Run) -> bool:
    """Whether there is something to submit of a sweep: what waits for room, or one more allocation of its pilot."""
    return run.sweep is not None and not run.cancelled and bool(run.sweep.unsent() or run.sweep.unfinished())


def go_on(
    far: Far,
    scheduler: Scheduler,
    book: Book,
    run: Run,
    limits: Limits,
    tell: Listener = ignore,
    *,
    look: bool = True,
) -> Run:
    """The sweep with what there is room for submitted; `look` as `runs.room.take_room` has it. Raises what the scheduler refuses with."""
    with book.claim(run.key, tell=tell):
        run = book.load(run.id)
        if goes_on(run):
            run = _begin_next(far, book, run, tell)
            run = send_chunks(far, scheduler, book, run, limits, tell=tell, look=look)
    return run


def _begin_next(far: Far, book: Book, run: Run, tell: Listener) -> Run:
    """The sweep with one more chunk for what its last allocation left, unless that was another job's, which may be at work."""
    sweep = sweep_of(run)
    left = sweep.unfinished()
    if not left:
        return run
    last = sweep.chunks[-1]
    job = find_job(far, chunk_folder(run, last))
    if job is not None and job not in last.jobs:
        return book.note(run.id, "chunk", {"chunk": last.number, "job": job})
    run = book.note(run.id, "allocation", {"tasks": write_ranges(left)})
    Queued(run.site).keep(holder_of(run.id, last.number), 0)
    tell(Noted(f"run {run.id}: allocation {last.number} ended, and {len(left)} tasks go on in the next one"))
    return run
