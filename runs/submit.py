"""Submitting once: a lost answer is looked up, never repeated."""

from __future__ import annotations

from collections.abc import Callable

from hibali.errors import TryLaterError
from hibali.events import Listener, Noted, ignore
from hibali.retry import growing_intervals, pause
from runs.scheduler import Answer, NotSubmitted, Scheduler, Submitted, Unclear, check_job_id
from transfers.far import Far, Once

SETTLING_SECONDS = 10.0  # after this long a submission that left no trace has not happened
_ATTEMPTS = 1000


def submit_once(
    far: Far,
    scheduler: Scheduler,
    *,
    run: str,
    folder: bytes,
    words: tuple[str, ...],
    since: str,
    put: Callable[[], None],
    settling: float = SETTLING_SECONDS,
    tell: Listener = ignore,
) -> str:
    """The id of the one job of this run; `folder` is the run's, `put` lays everything ready there.

    Each attempt has a marker of its own, and the next one is made only when the last certainly came to
    nothing. The job's own exclusive mkdir guards execution beyond that. Raises what the scheduler refuses
    with, or `TryLaterError` where it cannot be found out now.
    """
    guessed = False
    for attempt in range(1, _ATTEMPTS):
        marker = folder + (b"/submit" if attempt == 1 else b"/submit-%d" % attempt)
        if far.stat(marker) is None:  # from then on the job may be at work there
            put()
        once = far.run_once(marker, words, folder=folder)
        answer: Answer | None = _read(scheduler, once)
        if isinstance(answer, Unclear):
            tell(Noted(f"the answer to the submission is unclear ({answer.reason}); looking for the job"))
            answer = _look_up(far, scheduler, run, folder, marker, words, since, settling)
        if isinstance(answer, Submitted):
            return answer.job
        if isinstance(answer, NotSubmitted):
            if once.fresh:
                raise answer.error
        elif guessed:
            break
        else:
            guessed = True
    raise TryLaterError(
        "submission-unclear",
        "it cannot be found out whether the scheduler took the job",
        about=run,
        hint="The same line again goes on from here.",
    )


def find_job(far: Far, folder: bytes) -> str | None:
    """The job that took the run's one turn, as it wrote itself; None where none has started."""
    found = far.get(folder + b"/started/job", maximum=256)
    return check_job_id(found.decode("ascii", "replace").strip()) if found else None


def _read(scheduler: Scheduler, once: Once) -> Answer:
    if once.finished is None:
        return Unclear("it was begun, and no answer was written")
    return scheduler.read_submit(once.finished)


def _look_up(
    far: Far,
    scheduler: Scheduler,
    run: str,
    folder: bytes,
    marker: bytes,
    words: tuple[str, ...],
    since: str,
    settling: float,
) -> Answer | None:
    """Where the job is, or that it was refused after all; None when it certainly left no trace."""
    intervals = growing_intervals(0.5, 5.0)
    while True:
        once = far.run_once(marker, words, folder=folder)  # the answer may have come meanwhile
        settled = once.age_seconds >= settling
        answer = _read(scheduler, once)
        if not isinstance(answer, Unclear):
            return answer
        job = (
            find_job(far, folder)
            or _ask_queue(far, scheduler, run)
            or _ask_accounts(far, scheduler, run, since)
        )
        if job is not None:
            return Submitted(job)
        if settled:
            return None
        pause(min(intervals.next_pause(), max(0.1, settling - once.age_seconds)))


def _ask_queue(far: Far, scheduler: Scheduler, run: str) -> str | None:
    words = scheduler.lookup_words(run)
    return scheduler.read_lookup(far.run(words), far.facts()["user"]) if words else None


def _ask_accounts(far: Far, scheduler: Scheduler, run: str, since: str) -> str | None:
    words = scheduler.accounting_words((), run, since)
    found = scheduler.read_accounting(far.run(words)) if words else None
    return next(iter(found), None) if found else None
