"""Create the job of a run at a service exactly once: after a lost answer, search for its mark instead of creating another one."""

from __future__ import annotations

import math
from collections.abc import Callable

from hibali.errors import AccessError, TryLaterError, UsageError
from hibali.events import Listener, Noted, ignore
from hibali.retry import growing_intervals, pause
from runs.schedulers.base import NotSubmitted, SubmitResult, Submitted, Unclear
from runs.services.base import JobService, LostAnswerError, ServiceJob

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
