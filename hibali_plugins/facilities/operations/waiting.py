"""Wait for jobs of a service that handle files."""

from __future__ import annotations

from collections.abc import Callable

from hibali.errors import TryLaterError
from hibali.retry import growing_intervals, pause

_LONGEST_WAIT = 24 * 3600.0
_NOT_LISTED_SECONDS = 60.0  # in which a job appears


def wait_for_end(
    query: Callable[[], str | None], is_over: Callable[[str], bool], subject: str, job: str
) -> str:
    """Wait until a job is over, and return its state.

    Args:
        query: Returns the state of the job, None if the service does not list it.
        is_over: Returns whether a state is that of a job which has ended.
        subject: The site, as errors name it.
        job: The job, and what it does.

    Raises:
        TryLaterError: It did not end, or is not listed.
    """
    intervals = growing_intervals(0.3, 20.0)
    waited = 0.0
    while waited < _LONGEST_WAIT:
        state = query()
        if state is not None and is_over(state):
            return state
        if state is None and waited > _NOT_LISTED_SECONDS:
            break
        seconds = intervals.next_pause()
        pause(seconds)
        waited += seconds
    raise transfer_failed(subject, f"{job} did not end")


def transfer_failed(subject: str, what: str) -> TryLaterError:
    """Return the error for a job of the service that did not end well."""
    return TryLaterError("transfer-failed", f"the service's job {what}", subject=subject, transient=False)
