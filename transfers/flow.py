"""How fast each of several lines turns out to be, and which of them is through first with one more piece."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

_MEMORY_SECONDS = 1.0  # older answers count for less and less
_LEAST_SECONDS = 0.05  # answers that come in one heap are counted as one


class Flow:
    """What one line has under way, and the rate at which it was answered while it had something."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.held = 0  # bytes
        self.rate = 0.0  # bytes a second; 0 until it is known
        self._clock = clock
        self._since = 0.0
        self._answered = 0

    def take(self, size: int) -> None:
        """So many bytes more are under way."""
        if not self.held:
            self._since, self._answered = self._clock(), 0
        self.held += size

    def give_back(self, size: int) -> None:
        """So many of them were answered."""
        self.held -= size
        self._answered += size
        passed = self._clock() - self._since
        if passed < _LEAST_SECONDS or not self._answered:
            return
        seen = self._answered / passed
        weight = 1.0 - math.exp(-passed / _MEMORY_SECONDS) if self.rate else 1.0
        self.rate += weight * (seen - self.rate)
        self._since, self._answered = self._since + passed, 0


class Flowing(Protocol):
    """A line."""

    @property
    def flow(self) -> Flow:
        """How it goes."""


_Line = TypeVar("_Line", bound=Flowing)


def first_through(lines: Iterable[_Line], size: int) -> _Line:
    """The line that would have carried `size` bytes more before any other; a new one is held for as fast as the fastest.

    Eight connections share a link unevenly, and a file is through when the slowest of them has brought its last piece.
    """
    choices = list(lines)
    fastest = max(line.flow.rate for line in choices) or 1.0
    return min(choices, key=lambda line: (line.flow.held + size) / (line.flow.rate or fastest))
