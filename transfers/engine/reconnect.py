"""Reconnect after a lost connection: which errors mean one, and how long to try."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from hibali.errors import HibaliError, TryLaterError, is_lost
from hibali.events import Listener, Noted, Retried
from hibali.retry import pause, retry_after
from hibali.subprocesses import limited_programs
from transfers.model.store import Store

Result = TypeVar("Result")

_FIRST_PAUSE = 3.0
_FACTOR = 3.0
_LONGEST_PAUSE = 90.0
_LEAST_SECONDS = 20.0  # for the last attempt: a login takes so long at some sites


class RetryPolicy:
    """The pauses between tries, in seconds of a monotonic clock; without I/O."""

    def __init__(self, seconds: float, jitter: Callable[[], float]) -> None:
        """Stop after `seconds` without progress; every pause is multiplied by `jitter`."""
        self._seconds = seconds
        self._jitter = jitter
        self._mark: object = None
        self._since: float | None = None
        self._next = _FIRST_PAUSE

    def lost(self, now: float, mark: object) -> None:
        """Note a lost connection; a new `mark` means progress and restarts the policy."""
        if self._since is None or mark != self._mark:
            self._since, self._mark, self._next = now, mark, _FIRST_PAUSE

    def left(self, now: float) -> float:
        """Return the seconds until the end of the time."""
        return self._seconds - (now - (self._since if self._since is not None else now))

    def next_pause(self, now: float) -> float | None:
        """Return the pause before the next try; None after the last, which is at the end of the time."""
        left = self.left(now)
        if left <= 0:
            return None
        pause = min(left, self._next * self._jitter())
        self._next = min(_LONGEST_PAUSE, self._next * _FACTOR)
        return pause


class Reconnection:
    """Reconnects all stores of one operation after a lost connection.

    The others must reconnect, too, because they are in the middle of an answer.
    """

    def __init__(self, stores: Sequence[Store], progress: Callable[[], object], on_event: Listener) -> None:
        """Keep `stores`, which may grow, and `progress`, whose value changes with each progress."""
        self._stores = stores
        self._progress = progress
        self._on_event = on_event
        self._policy: RetryPolicy | None = None
        self._restarts = 0

    def until_done(self, act: Callable[[], Result], *, anew: bool = False) -> Result:
        """Return the result of `act`, which is called again after each reconnection; `anew` if it lists everything."""
        while True:
            try:
                return act()
            except TryLaterError as problem:
                self._reconnect(problem, anew=anew)

    def each(self, request: Callable[[int], Iterable[Result]]) -> Iterator[Result]:
        """Yield the answers of `request`, called again after each reconnection with the number of them so far."""
        done = 0
        while True:
            try:
                for reply in request(done):
                    done += 1
                    yield reply
            except TryLaterError as problem:
                self._reconnect(problem, anew=False)
            else:
                return

    def _reconnect(self, problem: TryLaterError, *, anew: bool) -> None:
        """Reconnect; raise `problem` if that is impossible, or the error of the last try."""
        stores = self._stores
        lost = [store for store in stores if store.connection_lost]
        seconds = min((store.reconnect_seconds for store in lost), default=0.0)
        possible = all(store.can_reconnect(anew=anew) for store in stores)
        if not (is_lost(problem) and seconds and possible):
            raise problem
        policy = self._note_loss(seconds)
        _disconnect(stores)
        retry_after(
            lambda: self._reconnect_all(anew=anew),
            problem,
            next_pause=lambda: policy.next_pause(time.monotonic()),
            on_pause=self._report_pause,
        )
        self._on_event(Noted(f"{problem.subject}: reconnected"))

    def _note_loss(self, seconds: float) -> RetryPolicy:
        """Note a lost connection; `seconds` is how long it is retried without progress."""
        self._policy = policy = self._policy or RetryPolicy(seconds, _jitter)
        resumed = sum(store.resumed_bytes for store in self._stores)
        policy.lost(time.monotonic(), (self._progress(), resumed))
        return policy

    def _reconnect_all(self, *, anew: bool) -> None:
        try:
            with self.limited_attempt():
                for store in self._stores:
                    store.reconnect(anew=anew)
        except BaseException:
            _disconnect(self._stores)
            raise

    @contextmanager
    def limited_attempt(self) -> Iterator[None]:
        """Let connecting again take no longer than what is left of the time; without a lost connection there is no limit."""
        if self._policy is None:
            yield
            return
        seconds = max(_LEAST_SECONDS, self._policy.left(time.monotonic()))
        with limited_programs(seconds) as is_late:
            try:
                yield
            except HibaliError as problem:
                if not is_late():
                    raise
                message = f"there was no answer within {seconds:.0f} s"
                raise TryLaterError("unreachable", message, subject=problem.subject) from None

    def wait_to_restart(self, problem: HibaliError, seconds: float) -> bool:
        """Wait before the operation restarts with new stores; return False when the time is up."""
        policy = self._note_loss(seconds)
        wait = policy.next_pause(time.monotonic())
        if wait is None:
            return False
        self._restarts += 1
        self._report_pause(problem, self._restarts, wait)
        pause(wait)
        return True

    def _report_pause(self, problem: HibaliError, attempt: int, seconds: float) -> None:
        message = f"connection lost, retrying in {seconds:.0f} s"
        self._on_event(Retried(problem.subject, attempt, seconds, f"connection lost: {problem.message}"))
        self._on_event(Noted(f"{problem.subject}: {message} ({problem.message})"))


def _disconnect(stores: Iterable[Store]) -> None:
    for store in stores:
        store.disconnect()


def _jitter() -> float:
    return random.uniform(0.9, 1.1)  # noqa: S311  # so that clients do not retry simultaneously
