"""Record how many bytes an operation carried over time, and each of its workers, in a series of bounded length."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_INTERVALS = 120
_MOST_WORKERS = 16  # whose bytes are recorded one by one; all count in the sum
_LEAST_INTERVALS = 3  # fewer show nothing that the receipt does not say
_INTERVAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Rates:
    """The end of each interval in seconds since the operation began, and the bytes carried in it: all, and by worker."""

    seconds: Sequence[float]
    bytes: Sequence[int]
    workers: Mapping[str, Sequence[int]]

    def to_record(self) -> dict[str, Any]:
        """Return the fields of the journal's line of kind `rates`."""
        return {"seconds": self.seconds, "bytes": self.bytes, "workers": self.workers}


class RateSeries:
    """Count bytes in intervals of a second; whenever there are too many, two become one, so that it never grows further."""

    def __init__(self, began: float) -> None:
        """`began` is a time of the clock that `sample` gets, in seconds."""
        self._began = self._last = began
        self._length = _INTERVAL_SECONDS
        self._ends: list[float] = []
        self._counts: list[Counter[int]] = []
        self._open: Counter[int] = Counter()

    def add(self, worker: int, size: int) -> None:
        """Count bytes; worker 0 is this process."""
        self._open[worker] += size

    def sample(self, at: float) -> None:
        """End the interval, if it is long enough."""
        if at - self._last < self._length:
            return
        self._ends.append(at - self._began)
        self._counts.append(self._open)
        self._last, self._open = at, Counter()
        if len(self._ends) == MOST_INTERVALS:
            self._ends = self._ends[1::2]
            self._counts = [a + b for a, b in zip(self._counts[::2], self._counts[1::2], strict=True)]
            self._length *= 2

    def rates(self, at: float) -> Rates | None:
        """Return all until now; None while it says too little. What is left of an interval is a part of the last one if it is short."""
        ends, counts = [*self._ends, at - self._began], [*self._counts, self._open]
        if self._ends and at - self._last < self._length / 2:
            ends[-2:], counts[-2:] = [ends[-1]], [counts[-2] + counts[-1]]
        if len(ends) < _LEAST_INTERVALS or not any(counts):
            return None
        workers = sorted({worker for count in counts for worker in count} - {0})[:_MOST_WORKERS]
        return Rates(
            [round(end, 1) for end in ends],
            [count.total() for count in counts],
            {str(worker): [count[worker] for count in counts] for worker in workers},
        )


def parse_rates(record: Mapping[str, Any]) -> Rates | None:
    """Return the series of a record; None if it is damaged."""
    try:
        seconds = [float(end) for end in record["seconds"]]
        series = {"": record["bytes"], **record["workers"]}
        counts = {str(worker): [int(size) for size in sizes] for worker, sizes in series.items()}
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    rising = all(a < b for a, b in zip([0.0, *seconds], seconds, strict=False)) and math.isfinite(
        sum(seconds)
    )
    fitting = all(len(sizes) == len(seconds) and min(sizes, default=-1) >= 0 for sizes in counts.values())
    few = len(seconds) <= MOST_INTERVALS and len(counts) <= _MOST_WORKERS + 1
    return Rates(seconds, counts.pop(""), counts) if rising and fitting and few else None
