"""Submitting the chunks of a sweep, each once, as long as there is room in the queue; the rest waits with us."""

from __future__ import annotations

from hibali.errors import TryLaterError
from hibali.events import Listener, Noted, ignore
from runs.book import Book
from runs.put import as_text
from runs.run import Run
from runs.scheduler import Job, Scheduler
from runs.submit import SETTLING_SECONDS, submit_once
from runs.sweeps.sweep import UNDER_WAY, Chunk, chunk_folder, chunk_name, sweep_of
from transfers.far import Far


def send_chunks(
    far: Far,
    scheduler: Scheduler,
    book: Book,
    run: Run,
    queued_jobs: int,
    *,
    settling: float = SETTLING_SECONDS,
    tell: Listener = ignore,
) -> Run:
    """The sweep with every chunk submitted for which there is room among `queued_jobs`, in order.

    Raises what the scheduler refuses the first one with; where it has taken some and is busy now, the others wait.
    """
    for chunk in sweep_of(run).unsent():
        run = book.load(run.id)
        if run.cancelled:
            break
        if not _has_room(book, run, len(chunk.tasks), queued_jobs):
            break
        try:
            run = _send_chunk(far, scheduler, book, run, chunk, settling, tell)
        except TryLaterError as problem:
            if problem.code != "scheduler-busy" or not run.job:
                raise
            tell(Noted(f"{problem.message}; {_waiting(run)} tasks wait"))
            break
    return run


def _send_chunk(
    far: Far, scheduler: Scheduler, book: Book, run: Run, chunk: Chunk, settling: float, tell: Listener
) -> Run:
    """One more job array in the queue; its folder has a marker of its own, as a run's has."""
    folder = chunk_folder(run, chunk)
    name = chunk_name(run.id, chunk.number)
    job = Job(name, f"{as_text(folder)}/job.sh", tasks=len(chunk.tasks))
    book.note(run.id, "submitting", {"chunk": chunk.number})
    found = submit_once(
        far,
        scheduler,
        run=name,
        folder=folder,
        words=scheduler.submit_words(job),
        since=run.created[:10],
        put=_nothing,
        settling=settling,
        tell=tell,
    )
    return book.note(run.id, "chunk", {"chunk": chunk.number, "job": found})


def _nothing() -> None:
    """It was laid ready with the tasks."""


def _waiting(run: Run) -> int:
    return sum(len(chunk.tasks) for chunk in sweep_of(run).unsent())


def _has_room(book: Book, run: Run, size: int, queued_jobs: int) -> bool:
    """A chunk that is larger than all of the queue's room goes in when nothing else is there."""
    queued = count_queued(book, run.site)
    return not queued or queued + size <= queued_jobs


def count_queued(book: Book, site: str) -> int:
    """How many jobs and array tasks of ours are in the queue of a site, as last heard of."""
    count = 0
    for run in book.all():
        if run.site != site or run.state.ended:
            continue
        if run.sweep is not None:
            count += len(run.sweep.in_state(*UNDER_WAY))
        elif run.state in UNDER_WAY and run.job:
            count += 1
    return count
