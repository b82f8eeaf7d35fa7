"""How much may be under way: bytes over all lines, and how far the pieces of one file may lie apart."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Open:
    size: int
    of: int | None
    offset: int


class Window:
    """Units that were sent and not answered. One thread opens, any may close.

    An interrupted file loses what lies behind its first gap: no piece is sent further than the limit from there.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        """`limit` tells how many bytes may be under way by now; it is asked when a unit comes or is answered."""
        self._limit = limit
        self.stopped = False
        self._held = 0
        self._open: dict[int, _Open] = {}
        self._changed = threading.Condition()

    def look_again(self) -> None:
        """The limit has changed."""
        with self._changed:
            self._changed.notify_all()

    def open(self, number: int, size: int, *, of: int | None = None, offset: int = 0) -> bool:
        """Wait for room for a unit, which may be a piece `of` a file at `offset`; False once stopped."""
        with self._changed:
            while not self.stopped and not self.has_room(size, of, offset):
                self._changed.wait()
            if self.stopped:
                return False
            self._held += size
            self._open[number] = _Open(size, of, offset)
            return True

    def has_room(self, size: int, of: int | None, offset: int) -> bool:
        """Whether such a unit could go now."""
        limit = self._limit()
        if self._held and self._held + size > limit:
            return False
        first = min((one.offset for one in self._open.values() if one.of == of), default=offset)
        return of is None or offset + size - first <= limit or first == offset

    def close(self, number: int) -> None:
        """A unit was answered."""
        with self._changed:
            found = self._open.pop(number, None)
            self._held -= found.size if found is not None else 0
            self._changed.notify_all()

    def wait_closed(self, number: int) -> bool:
        """Wait for one unit's answer; False once stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopped or number not in self._open)
            return not self.stopped

    def wait_empty(self) -> bool:
        """Wait for all answers; False once stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopped or not self._open)
            return not self.stopped

    def stop(self) -> None:
        """Wake everybody: nothing more is to be sent."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()
