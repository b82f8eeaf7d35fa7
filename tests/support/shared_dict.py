"""Dictionaries that the threads of a test server change while the test reads them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
_GONE = object()


class SharedDict(dict[Key, Value]):
    """A dict whose iteration, `keys`, `values` and `items` are over a copy, so that another thread can change it meanwhile."""

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys())

    def keys(self) -> list[Key]:  # type: ignore[override]
        return list(dict.keys(self))  # executes no Python code, so no other thread runs in between

    def items(self) -> list[tuple[Key, Value]]:  # type: ignore[override]
        found = [(key, self.get(key, _GONE)) for key in self.keys()]
        return [pair for pair in found if pair[1] is not _GONE]  # type: ignore[misc]

    def values(self) -> list[Value]:  # type: ignore[override]
        return [value for _, value in self.items()]


class SharedCounter(SharedDict[str, int], Counter[str]):
    """A Counter to which several threads add."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def add(self, key: str, number: int = 1) -> None:
        """Add to a count; `+=` can lose the addition of another thread."""
        with self._lock:
            self[key] += number
