"""Make one request of what several threads want at the same time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
_PATIENCE = 0.25  # of the time of a request
MOST = 256  # the agent opens all files of a request


class _Call(Generic[Item, Result]):
    def __init__(self, item: Item) -> None:
        self.item = item
        self.done = False
        self.result: Result
        self.failure: BaseException | None = None


class Group(Generic[Item, Result]):
    """Calls of several threads: while one request is under way, others wait and are made together by one of their threads."""

    def __init__(
        self,
        act: Callable[[Sequence[Item]], Sequence[Result]],
        size_of: Callable[[Item], int],
        most_bytes: int,
    ) -> None:
        """`act` makes one request for at most `MOST` items of at most `most_bytes` together, or for a larger one."""
        self._act = act
        self._size_of = size_of
        self._most_bytes = most_bytes
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        guard = threading.RLock()
        self._changed, self._arrived = threading.Condition(guard), threading.Condition(guard)
        self._waiting: list[_Call[Item, Result]] = []
        self._busy = False
        self._expected = 0  # callers at the end of the last request, most of which call again
        self._patience = 0.0  # seconds to wait for them

    def call(self, items: Sequence[Item]) -> list[Result]:
        """Return the result for each item. Raises what `act` raised for its request."""
        if self._process != os.getpid():  # threads of the parent do not exist here
            self._reset()
        mine = [_Call[Item, Result](item) for item in items]
        with self._changed:
            self._waiting += mine
            self._arrived.notify()
        try:
            while not all(call.done for call in mine):
                self._lead_or_wait(mine)
        except BaseException:
            with self._changed:
                self._waiting = [call for call in self._waiting if call not in mine]
            raise
        for call in mine:
            if call.failure is not None:
                raise call.failure
        return [call.result for call in mine]

    def _lead_or_wait(self, mine: Sequence[_Call[Item, Result]]) -> None:
        """Make the next request, or wait for the end of that of another thread."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy or all(call.done for call in mine))
            if all(call.done for call in mine):
                return
            self._busy = True
            self._arrived.wait_for(lambda: len(self._waiting) >= self._expected, self._patience)
            calls = self._take()
        began = time.monotonic()
        try:
            self._make(calls)
        finally:
            with self._changed:
                self._expected = len(calls) + len(self._waiting)
                self._patience = _PATIENCE * (time.monotonic() - began)
                self._waiting[:0] = [call for call in calls if not call.done]
                self._busy = False
                self._changed.notify_all()

    def _take(self) -> list[_Call[Item, Result]]:
        """Remove from the queue what fits into one request."""
        count = size = 0
        for call in self._waiting[:MOST]:
            size += self._size_of(call.item)
            if count and size > self._most_bytes:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _make(self, calls: Sequence[_Call[Item, Result]]) -> None:
        """Make one request; an interruption of this thread concerns no other one, which makes it again."""
        try:
            results = self._act([call.item for call in calls])
            for call, result in zip(calls, results, strict=True):
                call.result = result
        except Exception as problem:  # noqa: BLE001  # raised in every thread that waits for it
            for call in calls:
                call.failure = problem
        for call in calls:
            call.done = True
