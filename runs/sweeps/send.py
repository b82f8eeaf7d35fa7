"""Submit the job arrays of a sweep as far as the queue limits allow, and continue pilots."""

from __future__ import annotations

from functools import partial

from hibali.config.model import Limits
from hibali.errors import TryLaterError
from hibali.events import Listener, Noted, ignore
from hibali.text import as_text, counted, write_ranges
from runs.model import Chunk, Pilot, Run, chunk_name
from runs.pilot.setup import allocation_texts, write_allocation
from runs.rate_limits import rate_limited
from runs.records import chunk_folder, sweep_of
from runs.schedulers.base import Job, NotSubmitted, Scheduler, load_scheduler
from runs.send import reserve_queue_places
from runs.store import QueuePlaces, RunStore, holder_of
from runs.submit import SubmitRequest, find_job, submit_once
from transfers.remote.host import RemoteHost


def send_chunks(
    host: RemoteHost,
    scheduler: Scheduler,
    run_store: RunStore,
    run: Run,
    limits: Limits,
    *,
    on_event: Listener = ignore,
    query_site: bool = True,
) -> Run:
    """Submit the chunks of a sweep in order, as far as the queue has places; `query_site` as in `reserve_queue_places`.

    Raises the scheduler's refusal of the first chunk; if it accepted some and is busy now, the others wait.
    """
    for chunk in sweep_of(run).unsubmitted():
        run = run_store.load(run.id)
        if run.submission.cancelled:
            break
        begun = (
            holder_of(run.id, chunk.number) in QueuePlaces(run.site).held()
        )  # an earlier call reserved its places
        begin = partial(run_store.note, run.id, "submitting", {"chunk": chunk.number})
        if not reserve_queue_places(
            host,
            scheduler,
            run_store,
            run,
            limits.queued_jobs,
            chunk=chunk.number,
            places=1 if sweep_of(run).pilot else len(chunk.tasks),
            record_submission=begin,
            query_site=query_site,
        ):
            break
        try:
            run = _send_chunk(host, scheduler, run_store, run, chunk, limits, on_event, begun=begun)
        except TryLaterError as problem:
            if problem.code != "scheduler-busy" or not run.job:
                raise
            on_event(Noted(f"{problem.message}; {counted(_waiting(run), 'task waits', 'tasks wait')}"))
            break
    return run


def _send_chunk(
    host: RemoteHost,
    scheduler: Scheduler,
    run_store: RunStore,
    run: Run,
    chunk: Chunk,
    limits: Limits,
    on_event: Listener,
    *,
    begun: bool,
) -> Run:
    """Submit one more job array or allocation; its folder has a marker of its own, as a run's has."""
    folder = chunk_folder(run, chunk)
    name = chunk_name(run.id, chunk.number)
    pilot = sweep_of(run).pilot
    job = Job(name, f"{as_text(folder)}/job.sh", tasks=0 if pilot else len(chunk.tasks))
    argv = scheduler.submit_argv(job)
    write_files = partial(_put_allocation, host, run, chunk, pilot) if pilot else _put_nothing
    submission = SubmitRequest(name, folder, argv, run.created[:10], write_files, begun=begun)
    with rate_limited(run.site):
        result = submit_once(host, scheduler, submission, settling=limits.settling_seconds, on_event=on_event)
        if isinstance(result, NotSubmitted):
            QueuePlaces(run.site).set_places(holder_of(run.id, chunk.number), 0)
            raise result.error
    return run_store.note(run.id, "chunk", {"chunk": chunk.number, "job": result.job})


def _put_nothing() -> None:
    """Write no files: they were written with the tasks."""


def _put_allocation(host: RemoteHost, run: Run, chunk: Chunk, pilot: Pilot) -> None:
    variables = load_scheduler(run.placement.scheduler).variables
    texts = allocation_texts(run.id, chunk.number, chunk.tasks, pilot, variables)
    write_allocation(host, chunk_folder(run, chunk), texts)


def _waiting(run: Run) -> int:
    return sum(len(chunk.tasks) for chunk in sweep_of(run).unsubmitted())


def can_submit_more(run: Run) -> bool:
    """Return whether a sweep has chunks to submit, or may have another allocation."""
    return (
        run.sweep is not None
        and not run.submission.cancelled
        and bool(run.sweep.unsubmitted() or run.sweep.unfinished())
    )


def submit_more(
    host: RemoteHost,
    scheduler: Scheduler,
    run_store: RunStore,
    run: Run,
    limits: Limits,
    on_event: Listener = ignore,
    *,
    query_site: bool = True,
) -> Run:
    """Submit more chunks of a sweep as far as the queue has places. Raises the scheduler's refusal."""
    with run_store.lock(run.key, on_event=on_event):
        run = run_store.load(run.id)
        if can_submit_more(run):
            run = _begin_next(host, run_store, run, on_event)
            run = send_chunks(
                host, scheduler, run_store, run, limits, on_event=on_event, query_site=query_site
            )
    return run


def _begin_next(host: RemoteHost, run_store: RunStore, run: Run, on_event: Listener) -> Run:
    """Add an allocation for the tasks that the last one did not finish, unless another job of it may still run."""
    sweep = sweep_of(run)
    left = sweep.unfinished()
    if not left:
        return run
    last = sweep.chunks[-1]
    job = find_job(host, chunk_folder(run, last))
    if job is not None and job not in last.jobs:
        return run_store.note(run.id, "chunk", {"chunk": last.number, "job": job})
    run = run_store.note(run.id, "allocation", {"tasks": write_ranges(left)})
    QueuePlaces(run.site).set_places(holder_of(run.id, last.number), 0)
    on_event(
        Noted(
            f"run {run.id}: allocation {last.number} ended, and {counted(len(left), 'task continues', 'tasks continue')} in the next one"
        )
    )
    return run
