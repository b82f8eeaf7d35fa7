"""Submit a job exactly once: after a lost reply, search for the job instead of submitting again."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from hibali.documents import read_json
from hibali.errors import AccessError, HibaliError, TryLaterError, UsageError
from hibali.events import Listener, Noted, ignore
from hibali.ledger import seconds_of
from hibali.retry import growing_intervals, pause
from hibali.text import write_ranges
from runs.model import Key, Run, State
from runs.queue_places import QueuePlaces, holder_of
from runs.schedulers.base import (
    JobSystem,
    NotSubmitted,
    Scheduler,
    SubmitResult,
    Submitted,
    Unclear,
    check_job_id,
)
from runs.script import PROXY
from runs.services.base import JobService, LostAnswerError, ServiceJob, ServiceSystem, service_of
from runs.site_session import SiteSession
from runs.status import Observation
from runs.store import RunStore
from transfers.remote.host import OnceResult, RemoteHost, parse_result

# A submission without a trace after this time did not happen: two minutes are its time limit (transfers), and one
# minute is for a request on its way to the controller, and for a file name that a shared filesystem shows late.
SETTLING_SECONDS = 180.0
_START_SECONDS = 10.0  # without a queue to query, a submission starts a process
_WRITING_SECONDS = 5.0  # longer than a job needs from its start to the record of its id
_ATTEMPTS = 1000
ATTEMPT = "attempt"  # the record that a service is requested to create a job
_MARKER = re.compile(rb"submit(?:-([0-9]{1,4}))?")


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """A run to submit once: its folder, the command that submits it, the date it was created, and a function that writes its files.

    At a service, `argv` is the job as JSON. `begun`: an earlier call began to submit it; `age` are the seconds since a service was last
    requested to create its job, which `record_attempt` records.
    """

    run: str
    folder: bytes
    argv: tuple[str, ...]
    since: str
    write_files: Callable[[], None]
    begun: bool = False
    age: float = math.inf
    record_attempt: Callable[[], object] = lambda: None


def submit_once(
    host: RemoteHost,
    scheduler: JobSystem,
    submission: SubmitRequest,
    *,
    settling: float = SETTLING_SECONDS,
    on_event: Listener = ignore,
) -> Submitted | NotSubmitted:
    """Submit the one job of a run, or return why the scheduler refuses it.

    Each attempt has a marker of its own, and the next one is made only if the last one certainly failed. The job's own exclusive mkdir
    ensures that only one job executes the tool. Raises `TryLaterError` if the outcome cannot be determined now.
    """
    if isinstance(scheduler, ServiceSystem):
        return _create_once(host, submission, settling, on_event)
    assert isinstance(scheduler, Scheduler)
    folder = submission.folder
    if submission.begun and host.stat(_marker(folder, 1)) is None:
        # the marker may be missing, or removed with the folder, while its job exists
        job = _find(host, scheduler, submission.run, folder, submission.since)
        if job is not None:
            return Submitted(job)
    guessed = False
    for attempt in range(1, _ATTEMPTS):
        marker = _marker(folder, attempt)
        if host.stat(marker) is None:  # once the marker exists, the job may be running in the folder
            submission.write_files()
        attempted = host.run_once(marker, submission.argv, folder=folder)
        result: SubmitResult | None = _read(scheduler, attempted)
        if isinstance(result, Unclear):
            result = _find_unclear_job(host, scheduler, submission, marker, result, settling, on_event)
        if isinstance(result, Submitted):
            return result
        if isinstance(result, NotSubmitted):
            if attempted.fresh:
                return result
        elif guessed:
            break
        else:
            guessed = True
    raise _unclear(submission)


def _create_once(
    host: RemoteHost, submission: SubmitRequest, settling: float, on_event: Listener
) -> Submitted | NotSubmitted:
    [text] = submission.argv

    def begin() -> None:
        submission.write_files()
        submission.record_attempt()

    return create_once(
        service_of(host),
        ServiceJob(submission.run, read_json(text.encode(), "job")),
        submission.since,
        age=submission.age,
        settling=settling,
        record_attempt=begin,
        on_event=on_event,
    )


def find_submission(
    host: RemoteHost,
    scheduler: JobSystem,
    run: str,
    folder: bytes,
    since: str,
    *,
    age: Callable[[], float] = lambda: math.inf,
) -> SubmitResult:
    """Determine the outcome of a submission that was begun, without submitting anything; `age` as in `SubmitRequest`."""
    if isinstance(scheduler, ServiceSystem):
        job = find_job(host, folder) if scheduler.names_itself else None
        return Submitted(job) if job is not None else find_created(service_of(host), run, since, age())
    assert isinstance(scheduler, Scheduler)
    numbers = _attempts(host, folder)
    result: SubmitResult | None = None
    if numbers:
        content = host.get(_marker(folder, max(numbers)) + b"/answer.json", maximum=32 << 20)
        recorded = parse_result(content) if content is not None else None
        result = scheduler.read_submit(recorded) if recorded is not None else None
    if isinstance(result, Submitted | NotSubmitted):
        return result
    job = _find(host, scheduler, run, folder, since)
    if job is not None:
        return Submitted(job)
    if numbers or has_started(host, folder):
        return result or Unclear("the submission was begun, but no job was found")
    return NotSubmitted(
        TryLaterError("not-submitted", "it was never submitted", subject=run, transient=False)
    )


def find_run_submission(session: SiteSession, run: Run) -> SubmitResult:
    """Determine the outcome of the begun submission of a single run."""
    age = partial(attempt_age, session.runs, run.id)
    return find_submission(session.host, session.system, run.id, run.folder, run.created[:10], age=age)


@dataclass(frozen=True, slots=True)
class BegunSubmission:
    """The last submission that was begun: its age in seconds by the site's clock, and whether there was a reply."""

    age: float
    has_reply: bool


def submitted_at(host: RemoteHost, folder: bytes) -> BegunSubmission:
    """Return when a run's submission was last begun; if the site has no clock, it counts as begun now."""
    numbers = _attempts(host, folder)
    if not numbers:
        return BegunSubmission(math.inf, has_reply=False)
    marker = _marker(folder, max(numbers))
    found = host.stat(marker)
    clock = host.facts().get("clock", "")
    age = float(clock) - found.mtime_ns / 1e9 if found is not None and clock else 0.0
    return BegunSubmission(
        age, has_reply=host.stat(marker + b"/answer.json") is not None or has_started(host, folder)
    )


def attempt_age(run_store: RunStore, run_id: str, chunk: int = 0) -> float:
    """Return the seconds since a service was last requested to create the job of a run or chunk, infinite if it never was."""
    for record in reversed(run_store.records(run_id)):
        if record.get("kind") == ATTEMPT and record.get("chunk", 0) == chunk:
            moment = seconds_of(record.get("at"))
            return max(0.0, time.time() - moment) if moment is not None else 0.0
    return math.inf


def find_job(host: RemoteHost, folder: bytes) -> str | None:
    """Return the job that started the run, as the job recorded it; None if no job has started."""
    found = host.get(folder + b"/started/job", maximum=256)
    return check_job_id(found.decode("ascii", "replace").strip()) if found else None


def has_started(host: RemoteHost, folder: bytes) -> bool:
    """Return whether a job has started the run: then no other job executes the tool."""
    return host.stat(folder + b"/started") is not None


def _attempts(host: RemoteHost, folder: bytes) -> list[int]:
    return [int(found[1] or 1) for name in host.names(folder) if (found := _MARKER.fullmatch(name))]


def _marker(folder: bytes, attempt: int) -> bytes:
    return folder + (b"/submit" if attempt == 1 else b"/submit-%d" % attempt)


def _read(scheduler: Scheduler, attempted: OnceResult) -> SubmitResult:
    if attempted.finished is None:
        return Unclear("the submission was begun, but no reply of the scheduler was recorded")
    return scheduler.read_submit(attempted.finished)


def _find_unclear_job(
    host: RemoteHost,
    scheduler: Scheduler,
    submission: SubmitRequest,
    marker: bytes,
    unclear: Unclear,
    settling: float,
    on_event: Listener,
) -> SubmitResult | None:
    """Search for the job of an unclear submission; return it or a refusal, None if it certainly left no trace.

    Raises `TryLaterError` if a job has started and does not record its id: a second job would be useless.
    """
    patience = settling if scheduler.lookup_argv(submission.run) else min(settling, _START_SECONDS)
    on_event(
        Noted(
            f"the result of the submission is unclear ({unclear.reason}); "
            f"searching for the job, for at most {patience:.0f} s after its submission"
        )
    )
    intervals = growing_intervals(0.5, 20.0)
    begun = 0.0
    while True:
        # the reply may have arrived meanwhile
        attempted = host.run_once(marker, submission.argv, folder=submission.folder)
        settled = attempted.age_seconds >= patience
        result = _read(scheduler, attempted)
        if not isinstance(result, Unclear):
            return result
        job = _find(host, scheduler, submission.run, submission.folder, submission.since)
        if job is not None:
            return Submitted(job)
        if settled and not has_started(host, submission.folder):
            return None
        if begun >= _WRITING_SECONDS:
            raise _unclear(submission)
        seconds = min(intervals.next_pause(), max(0.5, patience - attempted.age_seconds))
        begun += seconds if settled else 0.0
        pause(seconds)


def _unclear(submission: SubmitRequest) -> TryLaterError:
    return TryLaterError(
        "submission-unclear",
        "hibali cannot determine whether the scheduler accepted the job",
        subject=submission.run,
        hint="Run the same command again to resume.",
    )


def _find(host: RemoteHost, scheduler: JobSystem, run: str, folder: bytes, since: str) -> str | None:
    """Search for a job of this run in its folder, in the queue and in the accounting."""
    return find_job(host, folder) or scheduler.find(host, run, since)


def remove_proxies(host: RemoteHost, runs: Iterable[Run], seen: Mapping[Key, Observation]) -> None:
    """Remove the proxies of jobs that were killed, before their end is recorded, so that a lost connection does not leave them."""
    known = {run.id: run for run in runs if run.submission.proxy and not run.state.final}
    for (run_id, number), found in seen.items():
        run = known.get(run_id)
        # a task with an exit record has removed it
        if (
            run is not None
            and found.state.final
            and (not number or (found.record is None and not run.tasks[number].state.final))
        ):
            remove_proxy(host, run, number)


def remove_proxy(host: RemoteHost, run: Run, number: int = 0) -> None:
    """Remove the proxy of a run or task that has ended. Raises `TryLaterError`; other problems are left to `runs clean`."""
    if not (run.submission.proxy and run.folder):
        return
    try:
        host.remove_tree(run.task_folder(number) + PROXY)
    except TryLaterError:
        raise
    except HibaliError:
        return


def cancel_tasks(
    run_store: RunStore, run: Run, numbers: Iterable[int], reason: str = "it was never submitted"
) -> Run:
    """Record that these tasks of a sweep are never submitted."""
    cancelled = sorted(numbers)
    if not cancelled:
        return run
    change = {
        "state": State.CANCELLED,
        "native": "",
        "reason": reason,
        "tasks": write_ranges(cancelled),
    }
    run = run_store.note(run.id, "tasks", {"changes": [change], "ends": []})
    for chunk in run.chunks:
        if not chunk.jobs:
            QueuePlaces(run.site).set_places(holder_of(run.id, chunk.number), 0)
    return run


_PATIENCE_SECONDS = 5.0
_ENDED = tuple(state for state in State if state.ended)


def cancel_unsubmitted(run_store: RunStore, run: Run) -> Run:
    """Record that a run is CANCELLED that was never submitted; the caller holds its lock (RunStore.lock)."""
    if run.sweep is not None:
        return cancel_tasks(run_store, run, run.tasks)
    seen = Observation(State.CANCELLED, "", "cancelled before it was submitted")
    return run_store.note(run.id, "seen", seen.to_fields())


def end_rejected(session: SiteSession, run: Run, refusal: HibaliError) -> None:
    """Record that the scheduler refuses a run or the rest of a sweep for good: the corrected command starts a new run."""
    reason = f"never submitted: {refusal.message}"
    if run.sweep is None:
        remove_proxy(session.host, run)
        run = session.runs.note(run.id, "seen", Observation(State.CANCELLED, "", reason).to_fields())
    else:
        left = {number for chunk in run.sweep.unsubmitted() for number in chunk.tasks}
        run = cancel_tasks(session.runs, run, left - {*run.in_state(*_ENDED)}, reason)
    if run.state.ended:
        session.runs.note(run.id, "reported")


def cancel_begun(session: SiteSession, run: Run) -> Run:
    """Cancel a run whose submission was begun and had no reply; return it with its job if it has one, else CANCELLED.

    A job may still appear: the run is marked as started, so that such a job does nothing. Raises `TryLaterError` if a job has started and does
    not record its id. The caller holds the run's lock (RunStore.lock).
    """
    host, run_store = session.host, session.runs
    found = find_run_submission(session, run)
    if isinstance(found, Submitted):
        return run_store.note_job(run.id, found.job)
    if isinstance(found, Unclear) and isinstance(session.system, ServiceSystem):  # nothing would stop its job
        raise TryLaterError("submission-unclear", found.reason, subject=run.id)
    if host.make_folder(run.folder + b"/started", exclusive=True):
        remove_proxy(host, run)
        seen = Observation(State.CANCELLED, "", "cancelled before its job started")
        return run_store.note(run.id, "seen", seen.to_fields())
    intervals = growing_intervals(0.1, 1.0)
    waited = 0.0
    while (job := find_job(host, run.folder)) is None:
        if waited >= _PATIENCE_SECONDS:
            raise TryLaterError(
                "submission-unclear",
                "a job of this run has started, but has not recorded its id",
                subject=run.id,
            )
        seconds = intervals.next_pause()
        pause(seconds)
        waited += seconds
    return run_store.note_job(run.id, job)


_REFUSED_SECONDS = 2.0  # in which a job appears although the service says that it failed


def create_once(
    service: JobService,
    job: ServiceJob,
    since: str,
    *,
    age: float,
    settling: float,
    record_attempt: Callable[[], object],
    on_event: Listener = ignore,
) -> Submitted | NotSubmitted:
    """Create a job, or return the one that an earlier call created.

    Args:
        service: The service.
        job: The job; no other job has its mark.
        since: The date of the run, `YYYY-MM-DD`.
        age: The seconds since the last request to create it, infinite if there was none.
        settling: The user's limit for the search, in seconds; that of the service may be lower.
        record_attempt: Records in the ledger that it is requested now, after all that the job needs was written.
        on_event: Called with each event.

    Raises:
        TryLaterError: It cannot be determined now whether the job exists.
    """
    settling = min(settling, service.facts.settling_seconds)
    if not math.isinf(age):
        found = _search(service, job.mark, since, settling - age, on_event)
        if found is not None:
            return Submitted(found)
    record_attempt()
    try:
        return Submitted(service.create(job))
    except LostAnswerError as problem:
        on_event(Noted(f"{problem.message}; searching for the job"))
        refusal = problem.refusal
    except (UsageError, AccessError) as problem:
        return NotSubmitted(problem)
    found = _search(service, job.mark, since, _REFUSED_SECONDS if refusal else settling, on_event)
    if found is not None:
        return Submitted(found)
    if refusal is not None:
        return NotSubmitted(refusal)
    message = f"{service.name} did not create the job"
    return NotSubmitted(TryLaterError("not-submitted", message, subject=job.mark))


def _search(service: JobService, mark: str, since: str, seconds: float, on_event: Listener) -> str | None:
    """Search for a job for so many seconds, within which it must have appeared."""
    intervals = growing_intervals(0.5, 10.0)
    found = service.find(mark, since)
    if found is None and seconds > 0:
        on_event(Noted(f"the job is not listed; searching for it for at most {seconds:.0f} s"))
    while found is None and seconds > 0:
        waited = min(seconds, intervals.next_pause())
        pause(waited)
        seconds -= waited
        found = service.find(mark, since)
    return found


def find_created(service: JobService, mark: str, since: str, age: float) -> SubmitResult:
    """Determine the outcome of a creation that was last requested `age` seconds ago, without waiting."""
    found = service.find(mark, since)
    if found is not None:
        return Submitted(found)
    if age < service.facts.settling_seconds:
        return Unclear("the job was requested, and is not listed yet")
    message = "it was never submitted"
    return NotSubmitted(TryLaterError("not-submitted", message, subject=mark, transient=False))
