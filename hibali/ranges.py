"""Sets of whole numbers in few words: `1-8,10`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_MOST = 1_000_000


def write_ranges(numbers: Iterable[int]) -> str:
    """The numbers in order, each run of neighbours as `FIRST-LAST`; "" for none."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in _runs(numbers))


def read_ranges(text: str) -> tuple[int, ...]:
    """The numbers that `write_ranges` wrote, ascending, each once. Raises `ValueError` for any other text."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is no range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _MOST:
            raise ValueError(f"{part!r} is no range of numbers")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    ordered = sorted(set(numbers))
    start = 0
    for position, number in enumerate(ordered):
        if position + 1 == len(ordered) or ordered[position + 1] != number + 1:
            yield ordered[start], number
            start = position + 1
