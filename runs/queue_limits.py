"""Submit runs and job arrays as far as the queue limits of their site allow, and continue pilots."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial

from hibali.config.model import Limits
from hibali.errors import NotFoundError, TryLaterError, UsageError
from hibali.events import Listener, Noted, ignore
from hibali.text import as_text, counted, write_ranges
from runs.model import Chunk, Pilot, Run, chunk_name
from runs.poll import update
from runs.queue_places import QueuePlaces, count_queued, format_queue_full, holder_of
from runs.rate_limits import rate_limited
from runs.records import sweep_of
from runs.schedulers.base import BatchSystem, Job, JobSystem, NotSubmitted, Submitted
from runs.services.base import load_batch_system
from runs.store import RunStore
from runs.submit import (
    ATTEMPT,
    SubmitRequest,
    attempt_age,
    cancel_begun,
    cancel_unsubmitted,
    end_rejected,
    find_job,
    find_submission,
    submit_once,
)
from transfers.remote.host import RemoteHost


def reserve_queue_places(
    host: RemoteHost,
    scheduler: JobSystem,
    run_store: RunStore,
    run: Run,
    limit: int,
    *,
    chunk: int = 0,
    places: int = 1,
    record_submission: Callable[[], object],
    query_site: bool = True,
) -> bool:
    """Reserve places in the site's queue for a run, or for the job array of a chunk; return whether there were enough.

    Args:
        host: The site's machine.
        scheduler: The site's scheduler.
        run_store: The ledger's runs.
        run: The run to submit.
        limit: The largest number of hibali's jobs in the queue.
        chunk: The number of the chunk, 0 for a single run.
        places: The number of needed places.
        record_submission: Records the submission in the ledger, before another process can count the places.
        query_site: Query the site once if the queue is full, because jobs may have ended since the last query.
    """
    queued = QueuePlaces(run.site)
    holder = holder_of(run.id, chunk)
    if queued.reserve(holder, places, limit, on_reserved=record_submission):
        return True
    holders = _load(run_store, queued)
    if query_site:
        queried = [each for each in holders if each.job and each.placement.scheduler == scheduler.name]
        update(host, scheduler, run_store, [each for each in queried if not each.state.ended])
    for each in holders:
        if each.sweep is None and not each.job and each.submission.begun:
            _settle_begun(host, scheduler, run_store, queued, each.id)
    # the place and the submission are recorded under one lock; a holder with only one of them died in between
    queued.release_stale(lambda run_id: _holds(run_store, run_id))
    return queued.reserve(holder, places, limit, on_reserved=record_submission)


def _load(run_store: RunStore, queued: QueuePlaces) -> list[Run]:
    holders = []
    for run_id in queued.runs():
        with contextlib.suppress(NotFoundError):
            holders.append(run_store.load(run_id))
    return holders


def _holds(run_store: RunStore, run_id: str) -> bool:
    try:
        run = run_store.load(run_id)
    except NotFoundError:
        return False
    return not run.state.ended and (bool(run.job) or run.submission.begun)


def _settle_begun(
    host: RemoteHost, scheduler: JobSystem, run_store: RunStore, queued: QueuePlaces, run_id: str
) -> None:
    """Determine the outcome of a submission whose process died; a process that is still running keeps its place."""
    with contextlib.suppress(TryLaterError), run_store.lock(run_store.load(run_id).key, longest_wait=0.0):
        run = run_store.load(run_id)
        if run.job or run.state.ended:
            return
        age = partial(attempt_age, run_store, run.id)
        found = find_submission(host, scheduler, run.id, run.folder, run.created[:10], age=age)
        if isinstance(found, Submitted):
            run_store.note_job(run.id, found.job)
        elif isinstance(found, NotSubmitted):
            queued.release(run.id)


def submit_run(
    host: RemoteHost,
    scheduler: JobSystem,
    run_store: RunStore,
    run: Run,
    *,
    argv: Sequence[str],
    write_files: Callable[[], None],
    limits: Limits,
    on_event: Listener = ignore,
    query_site: bool = True,
) -> Run:
    """Submit a run if the queue has a place for it; the caller holds the run's lock (RunStore.lock).

    Args:
        host: The site's machine.
        scheduler: The site's scheduler.
        run_store: The ledger's runs.
        run: The run to submit.
        argv: The command that submits it.
        write_files: Writes the files of the run.
        limits: The site's limits.
        on_event: Called with each event.
        query_site: Query the site if the queue is full, as in `reserve_queue_places`.

    Returns:
        The run with its job; waiting if the queue is full (`Run.waits`); CANCELLED if that was requested.

    Raises:
        HibaliError: The scheduler refuses the job.
    """
    run = run_store.load(run.id)
    if run.job or run.state.ended:
        return run
    if run.submission.cancelled:
        return (
            cancel_begun(host, scheduler, run_store, run)
            if run.submission.begun
            else cancel_unsubmitted(run_store, run)
        )
    begin = partial(run_store.note, run.id, "submitting")
    if not reserve_queue_places(
        host, scheduler, run_store, run, limits.queued_jobs, record_submission=begin, query_site=query_site
    ):
        write_files()
        return _wait(run_store, run, argv, limits.queued_jobs)
    submission = SubmitRequest(
        run.id,
        run.folder,
        tuple(argv),
        run.created[:10],
        write_files,
        begun=run.submission.begun,
        age=attempt_age(run_store, run.id) if run.submission.begun else math.inf,
        record_attempt=partial(run_store.note, run.id, ATTEMPT),
    )
    try:
        job = _submit_job(host, scheduler, run.site, holder_of(run.id), submission, limits, on_event)
    except UsageError as refusal:
        end_rejected(host, run_store, run, refusal)
        raise
    return run_store.note_job(run.id, job)


def _submit_job(
    host: RemoteHost,
    scheduler: JobSystem,
    site: str,
    holder: str,
    submission: SubmitRequest,
    limits: Limits,
    on_event: Listener,
) -> str:
    """Submit a job exactly once and return its id; if the scheduler refuses it, release the places of the holder and raise."""
    with rate_limited(site):
        result = submit_once(host, scheduler, submission, settling=limits.settling_seconds, on_event=on_event)
        if isinstance(result, NotSubmitted):
            QueuePlaces(site).set_places(holder, 0)
            raise result.error
    return result.job


def _wait(run_store: RunStore, run: Run, argv: Sequence[str], limit: int) -> Run:
    reason = format_queue_full(limit, count_queued(QueuePlaces(run.site).held()))
    if run.waits and run.status.reason == reason:
        return run
    return run_store.note(run.id, "waits", {"reason": reason, "words": list(argv)})


def submit_waiting(
    host: RemoteHost,
    scheduler: JobSystem,
    run_store: RunStore,
    run: Run,
    limits: Limits,
    on_event: Listener = ignore,
    *,
    query_site: bool = True,
) -> Run:
    """Submit a run that waited for a place in the queue; its files are at the site."""
    with run_store.lock(run.key, on_event=on_event):
        run = run_store.load(run.id)
        if not run.waits:
            return run
        return submit_run(
            host,
            scheduler,
            run_store,
            run,
            argv=run.submission.argv,
            write_files=_write_nothing,
            limits=limits,
            on_event=on_event,
            query_site=query_site,
        )


def _write_nothing() -> None:
    """Write no files: they are at the site."""


def queue_full_error(run: Run) -> TryLaterError:
    """Return the error for a caller who does not wait for a place in the queue."""
    return TryLaterError(
        "queue-full",
        run.status.reason,
        subject=run.id,
        hint=f"Run the same command again, or `hibali runs wait {run.id}`, to submit it when the queue has a place.",
    )


def submit_chunks(
    host: RemoteHost,
    scheduler: JobSystem,
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
        # an earlier call reserved its places
        begun = holder_of(run.id, chunk.number) in QueuePlaces(run.site).held()
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
            run = _submit_chunk(host, scheduler, run_store, run, chunk, limits, on_event, begun=begun)
        except UsageError as refusal:
            end_rejected(host, run_store, run, refusal)
            raise
        except TryLaterError as problem:
            if problem.code != "scheduler-busy" or not run.job:
                raise
            on_event(Noted(f"{problem.message}; {counted(_waiting(run), 'task waits', 'tasks wait')}"))
            break
    return run


def _submit_chunk(
    host: RemoteHost,
    scheduler: JobSystem,
    run_store: RunStore,
    run: Run,
    chunk: Chunk,
    limits: Limits,
    on_event: Listener,
    *,
    begun: bool,
) -> Run:
    """Submit one more job array or allocation; its folder has a marker of its own, as a run's has."""
    folder = run.chunk_folder(chunk)
    name = chunk_name(run.id, chunk.number)
    pilot = sweep_of(run).pilot
    job = Job(name, f"{as_text(folder)}/job.sh", tasks=0 if pilot else len(chunk.tasks))
    assert isinstance(scheduler, BatchSystem)  # no other system has sweeps
    argv = scheduler.submit_argv(job)
    write_files = partial(_put_allocation, host, run, chunk, pilot) if pilot else _write_nothing
    submission = SubmitRequest(
        name,
        folder,
        argv,
        run.created[:10],
        write_files,
        begun=begun,
        age=attempt_age(run_store, run.id, chunk.number) if begun else math.inf,
        record_attempt=partial(run_store.note, run.id, ATTEMPT, {"chunk": chunk.number}),
    )
    job_id = _submit_job(
        host, scheduler, run.site, holder_of(run.id, chunk.number), submission, limits, on_event
    )
    return run_store.note_job(run.id, job_id, chunk.number)


def _put_allocation(host: RemoteHost, run: Run, chunk: Chunk, pilot: Pilot) -> None:
    from runs.pilot.setup import allocation_texts, write_allocation  # start-up: only for pilots

    variables = load_batch_system(run.placement.scheduler).variables
    texts = allocation_texts(run.id, chunk.number, chunk.tasks, pilot, variables)
    write_allocation(host, run.chunk_folder(chunk), texts)


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
    scheduler: JobSystem,
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
            run = submit_chunks(
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
    job = find_job(host, run.chunk_folder(last))
    if job is not None and job not in last.jobs:
        return run_store.note_job(run.id, job, last.number)
    run = run_store.note(run.id, "allocation", {"tasks": write_ranges(left)})
    QueuePlaces(run.site).set_places(holder_of(run.id, last.number), 0)
    on_event(
        Noted(
            f"run {run.id}: allocation {last.number} ended, and {counted(len(left), 'task continues', 'tasks continue')} in the next one"
        )
    )
    return run
