"""Collect the results of shards, each once, however often it is reported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from hibali_plugins.nodes.rates import ShardTime
from hibali_plugins.nodes.records import UnitResult
from transfers.pipeline.batches import NumberSet

_Result = TypeVar("_Result")


class Collector(ABC, Generic[_Result]):
    """Which shards have ended, and why others have not; subclasses collect the results."""

    def __init__(self, shards: Sequence[int]) -> None:
        self._shards = shards
        self.times: dict[int, ShardTime] = {}  # of the shards that have done everything
        self._seen = NumberSet()
        self.stopped: tuple[str, str] | None = None  # a reason after which no other attempt is made
        self.reasons: dict[int, str] = {}

    @property
    def unfinished(self) -> list[int]:
        """The shards that have not done everything."""
        return [shard for shard in self._shards if shard not in self.times]

    def add_reasons(self, reasons: Mapping[int, str]) -> None:
        """Add why tasks failed, by their number; what shards themselves noted says more."""
        for number, reason in reasons.items():
            self.reasons.setdefault(number, reason)

    def add(self, shard: int, result: UnitResult) -> Iterator[_Result]:
        """Take one line of a journal; yield what it completes."""
        if result.ended is not None:
            self.times[shard] = result.ended
        elif result.stopped is not None:
            if result.stopped[0] == "lease-lost":
                self.stopped = result.stopped
            self.reasons[shard] = result.stopped[1]
        elif result.unit not in self._seen:
            self._seen.add(result.unit)
            yield from self._take(result)

    @abstractmethod
    def _take(self, result: UnitResult) -> Iterator[_Result]:
        """Take the result of a unit; yield what it completes."""
