"""Reconnect after a lost connection: which errors mean one, and how long to try."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from hibali.errors import HibaliError, TryLaterError
from hibali.events import Listener, Noted, Retried
from hibali.retry import pause, try_again
from transfers.stores.base import Store

Result = TypeVar("Result")

_LOST = frozenset({"connection-lost", "unreachable"})
_FIRST_PAUSE = 3.0
_FACTOR = 3.0
_LONGEST_PAUSE = 90.0


def is_lost(problem: BaseException) -> bool:
    """Whether this says that a line was lost, and nothing about who was at its other end."""
    return isinstance(problem, TryLaterError) and problem.transient and problem.code in _LOST


class RetryPolicy:
    """Which pauses are made between tries, in seconds of some monotonic clock; a pure decision."""

    def __init__(self, seconds: float, jitter: Callable[[], float]) -> None:
        """It ends when `seconds` have passed without getting on; every pause is multiplied by `jitter`."""
        self._seconds = seconds
        self._jitter = jitter
        self._mark: object = None
        self._since: float | None = None
        self._next = _FIRST_PAUSE

    def lost(self, now: float, mark: object) -> None:
        """A line is lost; with another `mark` than at the last time the call got on meanwhile, and all begins again."""
        if self._since is None or mark != self._mark:
            self._since, self._mark, self._next = now, mark, _FIRST_PAUSE

    def next_pause(self, now: float) -> float | None:
        """How long to wait for the next try; None where there is none. The last one is made when the time is up."""
        left = self._seconds - (now - (self._since if self._since is not None else now))
        if left <= 0:
            return None
        pause = min(left, self._next * self._jitter())
        self._next = min(_LONGEST_PAUSE, self._next * _FACTOR)
        return pause


class Reconnection:
    """Brings the stores of one call back after a lost line, all of them: whoever was not lost waits in the middle of something."""

    def __init__(self, stores: Sequence[Store], mark: Callable[[], object], on_event: Listener) -> None:
        """`stores` may still grow; `mark` changes when something was done."""
        self._stores = stores
        self._mark = mark
        self._on_event = on_event
        self._patience: RetryPolicy | None = None
        self._restarts = 0

    def until_done(self, act: Callable[[], Result], *, anew: bool = False) -> Result:
        """What `act` returns; called again, after a lost line came back. `anew` if it looks at everything by itself."""
        while True:
            try:
                return act()
            except TryLaterError as problem:
                self._come_back(problem, anew=anew)

    def each(self, ask: Callable[[int], Iterable[Result]]) -> Iterator[Result]:
        """What `ask` answers, which is told how many answers came before it was interrupted by a lost line."""
        done = 0
        while True:
            try:
                for answer in ask(done):
                    done += 1
                    yield answer
            except TryLaterError as problem:
                self._come_back(problem, anew=False)
            else:
                return

    def _come_back(self, problem: TryLaterError, *, anew: bool) -> None:
        """Raises `problem` where it is not to be tried, or what the last try raised."""
        stores = self._stores
        lost = [store for store in stores if store.connection_lost]
        seconds = min((store.reconnect_seconds for store in lost), default=0.0)
        possible = all(store.can_reconnect(anew=anew) for store in stores)
        if not (is_lost(problem) and seconds and possible):
            raise problem
        patience = self._lost(seconds)
        _disconnect(stores)
        try_again(
            lambda: _reconnect(stores, anew=anew),
            problem,
            next_pause=lambda: patience.next_pause(time.monotonic()),
            on_pause=self._tell_pause,
        )
        self._on_event(Noted(f"{problem.subject}: the line is back"))

    def _lost(self, seconds: float) -> RetryPolicy:
        """Note that a line is lost; `seconds` is how long it may take to come back without getting on."""
        self._patience = patience = self._patience or RetryPolicy(seconds, _jitter)
        landed = sum(store.resumed_bytes for store in self._stores)
        patience.lost(time.monotonic(), (self._mark(), landed))
        return patience

    def wait_to_begin_again(self, problem: HibaliError, seconds: float) -> bool:
        """Pause before the whole call begins again, which tells the stores nothing; False where it waited long enough."""
        patience = self._lost(seconds)
        wait = patience.next_pause(time.monotonic())
        if wait is None:
            return False
        self._restarts += 1
        self._tell_pause(problem, self._restarts, wait)
        pause(wait)
        return True

    def _tell_pause(self, problem: HibaliError, attempt: int, seconds: float) -> None:
        words = f"the line is lost, trying again in {seconds:.0f} s"
        self._on_event(Retried(problem.subject, attempt, seconds, f"the line is lost: {problem.message}"))
        self._on_event(Noted(f"{problem.subject}: {words} ({problem.message})"))


def _reconnect(stores: Iterable[Store], *, anew: bool) -> None:
    try:
        for store in stores:
            store.reconnect(anew=anew)
    except BaseException:
        _disconnect(stores)
        raise


def _disconnect(stores: Iterable[Store]) -> None:
    for store in stores:
        store.disconnect()


def _jitter() -> float:
    return random.uniform(0.9, 1.1)  # noqa: S311  # so that many clients of one server do not come in step
