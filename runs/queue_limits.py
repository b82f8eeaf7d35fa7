"""Submit runs and job arrays as far as the queue limits of their site allow, and continue pilots."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from hibali.errors import NotFoundError, TryLaterError, UsageError
from hibali.events import Noted
from hibali.text import as_bytes, as_text, counted, write_ranges
from runs.model import Chunk, Pilot, Run, chunk_name
from runs.poll import update
from runs.queue_places import QueuePlaces, count_queued, format_queue_full, holder_of
from runs.rate_limits import rate_limited
from runs.records import sweep_of
from runs.schedulers.base import BatchSystem, Job, NotSubmitted, Submitted
from runs.services.base import load_batch_system
from runs.site_session import SiteSession
from runs.store import RunStore
from runs.submit import (
    ATTEMPT,
    SubmitRequest,
    attempt_age,
    cancel_begun,
    cancel_unsubmitted,
    end_rejected,
    find_job,
    find_run_submission,
    submit_once,
)


def _write_nothing() -> None:
    """Write no files: they are at the site, or there are none."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one job runs: a single run (chunk 0), or a chunk of a sweep; its name, folder, command and places in the queue."""

    chunk: int
    name: str
    folder: bytes
    argv: tuple[str, ...]
    places: int = 1
    write_files: Callable[[], None] = _write_nothing

    def fields(self) -> dict[str, object]:
        """Return the fields of a record about this part."""
        return {"chunk": self.chunk} if self.chunk else {}


def _reserve(session: SiteSession, run: Run, part: Part, *, query_site: bool) -> bool:
    """Reserve the places of a part in the site's queue; return whether there were enough.

    The submission is recorded before another process can count the places. With `query_site` a full queue is queried once, because jobs may
    have ended since the last query.
    """
    queued, runs = QueuePlaces(run.site), session.runs
    begin = partial(runs.note, run.id, "submitting", part.fields())
    reserve = partial(
        queued.reserve,
        holder_of(run.id, part.chunk),
        part.places,
        session.limits.queued_jobs,
        on_reserved=begin,
    )
    if reserve():
        return True
    holders = _load(runs, queued)
    if query_site:
        queried = [each for each in holders if each.job and each.placement.scheduler == session.scheduler]
        update(session, [each for each in queried if not each.state.ended])
    for each in holders:
        if each.sweep is None and not each.job and each.submission.begun:
            _settle_begun(session, queued, each.id)
    # the place and the submission are recorded under one lock; a holder with only one of them died in between
    queued.release_stale(lambda run_id: _holds(runs, run_id))
    return reserve()


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


def _settle_begun(session: SiteSession, queued: QueuePlaces, run_id: str) -> None:
    """Determine the outcome of a submission whose process died; a process that is still running keeps its place."""
    runs = session.runs
    with contextlib.suppress(TryLaterError), runs.lock(runs.load(run_id).key, longest_wait=0.0):
        run = runs.load(run_id)
        if run.job or run.state.ended:
            return
        found = find_run_submission(session, run)
        if isinstance(found, Submitted):
            runs.note_job(run.id, found.job)
        elif isinstance(found, NotSubmitted):
            queued.release(run.id)


def submit_parts(session: SiteSession, run: Run, parts: Iterable[Part], *, query_site: bool = True) -> Run:
    """Submit the parts of a run in order, as far as the queue has places; the caller holds the run's lock (RunStore.lock).

    Returns:
        The run with its job; waiting if the queue is full (`Run.waits`); a single run CANCELLED if that was requested.

    Raises:
        HibaliError: The scheduler refuses a job; of a sweep, if it accepted some and is busy now, the others wait.
    """
    for part in parts:
        run = session.runs.load(run.id)
        if not part.chunk and (run.job or run.state.ended):
            break
        if run.submission.cancelled:
            return run if part.chunk else cancel_before_submission(session, run)
        begun = _is_begun(run, part)
        if not _reserve(session, run, part, query_site=query_site):
            return run if part.chunk else _wait(session, run, part)
        try:
            run = _submit(session, run, part, begun=begun)
        except UsageError as refusal:
            end_rejected(session, run, refusal)
            raise
        except TryLaterError as problem:
            if not part.chunk or problem.code != "scheduler-busy" or not run.job:
                raise
            waiting = sum(len(chunk.tasks) for chunk in sweep_of(run).unsubmitted())
            session.on_event(Noted(f"{problem.message}; {counted(waiting, 'task waits', 'tasks wait')}"))
            break
    return run


def _is_begun(run: Run, part: Part) -> bool:
    """Return whether an earlier call began to submit this part; that of a chunk reserved its places."""
    if not part.chunk:
        return run.submission.begun
    return holder_of(run.id, part.chunk) in QueuePlaces(run.site).held()


def cancel_before_submission(session: SiteSession, run: Run) -> Run:
    """Cancel a single run that has no job, as was requested; the caller holds its lock."""
    return cancel_begun(session, run) if run.submission.begun else cancel_unsubmitted(session.runs, run)


def _submit(session: SiteSession, run: Run, part: Part, *, begun: bool) -> Run:
    """Submit one job exactly once, and record it; if the scheduler refuses it, release its places and raise."""
    submission = SubmitRequest(
        part.name,
        part.folder,
        part.argv,
        run.created[:10],
        part.write_files,
        begun=begun,
        age=attempt_age(session.runs, run.id, part.chunk) if begun else math.inf,
        record_attempt=partial(session.runs.note, run.id, ATTEMPT, part.fields()),
    )
    with rate_limited(run.site):
        result = submit_once(
            session.host,
            session.system,
            submission,
            settling=session.limits.settling_seconds,
            on_event=session.on_event,
        )
        if isinstance(result, NotSubmitted):
            QueuePlaces(run.site).set_places(holder_of(run.id, part.chunk), 0)
            raise result.error
    return session.runs.note_job(run.id, result.job, part.chunk)


def _wait(session: SiteSession, run: Run, part: Part) -> Run:
    """Record that a staged run waits for a place in the queue."""
    part.write_files()
    reason = format_queue_full(session.limits.queued_jobs, count_queued(QueuePlaces(run.site).held()))
    if run.waits and run.status.reason == reason:
        return run
    return session.runs.note(run.id, "waits", {"reason": reason, "words": list(part.argv)})


def run_part(run: Run, argv: Sequence[str], write_files: Callable[[], None] = _write_nothing) -> Part:
    """Return a single run as its only part."""
    return Part(0, run.id, run.folder, tuple(argv), write_files=write_files)


def chunk_parts(session: SiteSession, run: Run) -> list[Part]:
    """Return the job arrays, or allocations, of a sweep that are not submitted; their folders have markers like that of a run."""
    assert isinstance(session.system, BatchSystem)  # no other system has sweeps
    pilot = sweep_of(run).pilot
    found = []
    for chunk in sweep_of(run).unsubmitted():
        folder, name, size = run.chunk_folder(chunk), chunk_name(run.id, chunk.number), len(chunk.tasks)
        argv = session.system.submit_argv(Job(name, f"{as_text(folder)}/job.sh", tasks=0 if pilot else size))
        write = partial(_put_allocation, session, run, chunk, pilot) if pilot else _write_nothing
        found.append(Part(chunk.number, name, folder, argv, 1 if pilot else size, write))
    return found


def _put_allocation(session: SiteSession, run: Run, chunk: Chunk, pilot: Pilot) -> None:
    from runs.task_runner import load_task_runner  # start-up: only for pilots
    from transfers.remote.host import SmallFile  # as above

    variables, folder = load_batch_system(run.placement.scheduler).variables, run.chunk_folder(chunk)
    texts = load_task_runner().allocation_texts(run.id, chunk.number, chunk.tasks, pilot, variables)
    files = [
        SmallFile(folder + b"/" + as_bytes(name), as_bytes(text), executable=name == "job.sh")
        for name, text in texts.items()
    ]
    session.host.put_all(files, [folder])


def can_submit(run: Run) -> bool:
    """Return whether a run waits for a place in the queue, or a sweep has chunks to submit or may have another allocation."""
    return run.waits or (
        run.sweep is not None
        and not run.submission.cancelled
        and bool(run.sweep.unsubmitted() or run.sweep.unfinished())
    )


def submit_more(session: SiteSession, run: Run, *, query_site: bool = True) -> Run:
    """Submit what a run has not submitted yet, as far as the queue has places; its files are at the site. Raises the scheduler's refusal."""
    with session.runs.lock(run.key, on_event=session.on_event):
        run = session.runs.load(run.id)
        if not can_submit(run):
            return run
        if run.sweep is None:
            return submit_parts(session, run, [run_part(run, run.submission.argv)], query_site=query_site)
        run = _begin_next(session, run)
        return submit_parts(session, run, chunk_parts(session, run), query_site=query_site)


def queue_full_error(run: Run) -> TryLaterError:
    """Return the error for a caller who does not wait for a place in the queue."""
    return TryLaterError(
        "queue-full",
        run.status.reason,
        subject=run.id,
        hint=f"Run the same command again, or `hibali runs wait {run.id}`, to submit it when the queue has a place.",
    )


def _begin_next(session: SiteSession, run: Run) -> Run:
    """Add an allocation for the tasks that the last one did not finish, unless another job of it may still run."""
    sweep = sweep_of(run)
    left = sweep.unfinished()
    if not left:
        return run
    last = sweep.chunks[-1]
    job = find_job(session.host, run.chunk_folder(last))
    if job is not None and job not in last.jobs:
        return session.runs.note_job(run.id, job, last.number)
    run = session.runs.note(run.id, "allocation", {"tasks": write_ranges(left)})
    QueuePlaces(run.site).set_places(holder_of(run.id, last.number), 0)
    session.on_event(
        Noted(
            f"run {run.id}: allocation {last.number} ended, and {counted(len(left), 'task continues', 'tasks continue')} in the next one"
        )
    )
    return run
