"""Wait and retry, and notice that nothing moves; the only module that does."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from hibali.cancellation import current_cancellation
from hibali.errors import HibaliError, TryLaterError

if TYPE_CHECKING:  # start-up: every command imports this module
    from hibali.events import Listener

Result = TypeVar("Result")


def with_retries(
    attempt: Callable[[], Result],
    *,
    subject: str,
    attempts: int = 4,
    first_wait: float = 0.5,
    longest_wait: float = 20.0,
    patience: float = math.inf,
    on_event: Listener | None = None,
) -> Result:
    """Call `attempt` until it succeeds; errors marked transient are retried after growing, jittered pauses.

    The last error is raised unchanged. `attempts` includes the first one; no attempt starts later than `patience` seconds after it.
    """
    began = time.monotonic()
    try:
        return attempt()  # nearly always enough, and then tenacity is not imported
    except HibaliError as problem:
        if not problem.transient:
            raise
        failures = [problem]
    import tenacity  # start-up: only after a failure

    from hibali.events import Retried  # start-up: only after a failure

    def next_attempt() -> Result:
        if failures:
            raise failures.pop()
        return attempt()

    def before_pause(state: tenacity.RetryCallState) -> None:
        if on_event is None:
            return
        problem = state.outcome.exception() if state.outcome else None
        wait = state.next_action.sleep if state.next_action else 0.0
        on_event(Retried(subject, state.attempt_number, wait, getattr(problem, "message", str(problem))))

    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(attempts)
        | tenacity.stop_before_delay(began + patience - time.monotonic()),
        wait=tenacity.wait_exponential(multiplier=first_wait, max=longest_wait)
        + tenacity.wait_random(0, first_wait),
        retry=tenacity.retry_if_exception(
            lambda problem: isinstance(problem, HibaliError) and problem.transient
        ),
        before_sleep=before_pause,
        sleep=pause,
        reraise=True,
    )
    return retrying(next_attempt)


def retry_after(
    attempt: Callable[[], Result],
    problem: HibaliError,
    *,
    next_pause: Callable[[], float | None],
    on_pause: Callable[[HibaliError, int, float], None],
) -> Result:
    """Call `attempt` after something else failed with `problem`, with pauses, until it succeeds or there is no next pause.

    `on_pause` is called before each pause with the error, the number of attempts so far, and the length of the pause. Only
    errors marked transient are retried; the last one is raised unchanged.
    """
    import tenacity  # start-up: only after a failure

    failures = [problem]
    ended = False

    def next_attempt() -> Result:
        if failures:
            raise failures.pop()
        return attempt()

    def wait(state: tenacity.RetryCallState) -> float:
        nonlocal ended
        del state
        seconds = next_pause()
        ended = seconds is None
        return seconds or 0.0

    def before_pause(state: tenacity.RetryCallState) -> None:
        found = state.outcome.exception() if state.outcome else None
        if isinstance(found, HibaliError) and state.next_action:
            on_pause(found, state.attempt_number, state.next_action.sleep)

    retrying = tenacity.Retrying(
        wait=wait,
        stop=lambda _: ended,
        retry=tenacity.retry_if_exception(lambda found: isinstance(found, HibaliError) and found.transient),
        before_sleep=before_pause,
        sleep=pause,
        reraise=True,
    )
    return retrying(next_attempt)


def when_free(
    attempt: Callable[[], Result],
    *,
    subject: str,
    patience: float,
    code: str = "locked",
    on_event: Listener | None = None,
) -> Result:
    """Call `attempt` until it does not fail with `code`; with `locked` another process works there, or the lease of a dead one has not expired.

    After `patience` seconds that error is raised unchanged.
    """
    pauses = growing_intervals(0.5, 10.0)
    deadline = time.monotonic() + patience
    tries = 0
    while True:
        try:
            return attempt()
        except HibaliError as problem:
            wait = pauses.next_pause()
            if problem.code != code or time.monotonic() + wait > deadline:
                raise
            tries += 1
            if on_event is not None:
                from hibali.events import Retried  # start-up: only after a failure

                on_event(Retried(subject, tries, wait, problem.message))
        pause(wait)


def pause(seconds: float) -> None:
    """Sleep, because another program needs time. Raises `TryLaterError` at once when the command is interrupted."""
    if seconds > 0 and _interrupted_within(seconds):
        raise TryLaterError("interrupted", "interrupted", transient=False)


def wait_unless_interrupted(seconds: float) -> None:
    """Sleep, to keep a limit. Returns at once when the command is interrupted: what it does to end must not be delayed."""
    if seconds > 0:
        _interrupted_within(seconds)


def wait_anyway(seconds: float) -> None:
    """Sleep, also in an interrupted command: for the few requests without which something would be left behind."""
    time.sleep(seconds)


@cache
def _interruption() -> tuple[int, int]:
    """Return both ends of a pipe that is never read: a byte in it wakes up every thread that polls it.

    Unlike `threading.Event` it has no lock that the interrupted thread might hold.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    return reading, writing


def _interrupted_within(seconds: float | None) -> bool:
    """Wait for `seconds`, None for ever; return True early when the command is interrupted or the operation cancelled."""
    poll = select.poll()
    poll.register(_interruption()[0], select.POLLIN)
    cancellation = current_cancellation()
    if cancellation is not None:
        poll.register(cancellation, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def interrupt_waits() -> None:
    """End every `pause` and every wait of a `Pace`, in all threads, because of an interruption. It only writes to a pipe."""
    with contextlib.suppress(BlockingIOError):  # a full pipe has the same effect
        os.write(_interruption()[1], b".")


def after_interruption(seconds: float, act: Callable[[], None]) -> None:
    """Call `act` in its own thread, `seconds` after an interruption, if the command still runs then."""

    def watch() -> None:
        _interrupted_within(None)
        time.sleep(seconds)
        act()

    threading.Thread(target=watch, name="interruption", daemon=True).start()


class Pace:
    """A limit of the average bytes per second of a stream; 0 is no limit."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._due = time.monotonic()
        self._began: float | None = None
        self._held = self._lasted = 0.0

    def acquire(self, size: int) -> None:
        """Wait until `size` more bytes may be sent; unused bandwidth is not saved up."""
        if not self._rate:
            return
        now = time.monotonic()
        wait = max(0.0, self._due - now)
        self._began = self._began or now
        self._held += wait
        self._lasted = now + wait - self._began
        wait_unless_interrupted(wait)
        self._due = max(self._due, now) + size / self._rate

    @property
    def slows(self) -> bool:
        """Whether the limit slows the stream: waits took at least a tenth of its time."""
        return self._held > 0 and self._held * 10 >= self._lasted


def growing_intervals(first: float, longest: float, factor: float = 1.5) -> Intervals:
    """Return pauses for polling that start at `first` seconds and grow to `longest`, each jittered by a tenth."""
    return Intervals(first, longest, factor)


class Intervals:
    """An endless series of growing pauses in seconds; call `restart` when something happened."""

    def __init__(self, first: float, longest: float, factor: float) -> None:
        self._first = first
        self._longest = max(first, longest)
        self._factor = factor
        self._next = first

    def next_pause(self) -> float:
        """Return the next pause, jittered so that many clients do not poll at the same time."""
        import random  # start-up: only where something is polled

        current = self._next
        self._next = min(self._longest, current * self._factor)
        return current * random.uniform(0.95, 1.05)  # noqa: S311  # a jitter, not a secret

    def restart(self) -> None:
        """Start with short pauses again."""
        self._next = self._first


def stalled(seconds: float, subject: str) -> TryLaterError:
    """Return the error for a connection that hibali ended after no progress for so long."""
    return TryLaterError(
        "stalled",
        f"no progress for {seconds:.0f} s: a filesystem there may hang, so hibali ended the connection",
        subject=subject,
        hint="Check there that the filesystem answers, then run the same command again to resume. "
        "If it is only slow, increase `stall` in the site's limits.",
    )


class StallClock:
    """Measure how long a value stays the same, in periods, so that time in which this process was suspended does not count."""

    def __init__(self, limit: float) -> None:
        """`limit` is in seconds, 0 for none."""
        self._limit = limit
        self._before: object = None
        self._seconds = 0.0

    def is_over(self, value: object, period: float) -> bool:
        """Return whether `value` was the same for `limit` seconds; call it after each period. None: nothing is awaited."""
        self._seconds = self._seconds + period if value is not None and value == self._before else 0.0
        self._before = value
        return bool(self._limit) and self._seconds >= self._limit * 0.999  # a sum of periods is not exact
