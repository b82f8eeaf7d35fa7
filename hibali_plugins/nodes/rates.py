"""Learn how many nodes are useful between two places: more nodes do not help where a filesystem or network is the limit.

At KAUST, dcp with 16 processes was 5.0 times as fast as with one, with 32 only 2.8 times.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hibali.documents import canonical_digest
from hibali.files import read_regular, write_atomic
from hibali.ledger import ledger_folder
from hibali.locations import Location

_GAIN = 1.1  # more nodes are useful if they move a tenth more bytes a second
_TOGETHER = (
    0.2  # shards that start later than after this share of the time measure the queue, not the network
)
_LEAST_SECONDS = 30.0
_LEAST_BYTES = 10**9
_KEPT = 20  # measurements
_FORGOTTEN_SECONDS = 30 * 86_400.0  # sites change
_MOST_BYTES = 64 * 1024


class ShardTime(NamedTuple):
    """When a shard began and ended, in seconds by the clock of its node, and the bytes that it moved."""

    began: float
    ended: float
    size: int


class Measurement(NamedTuple):
    """The bytes a second that so many nodes moved together, at a time in seconds since the epoch."""

    nodes: int
    rate: float
    at: float


def measured(shards: Sequence[ShardTime], at: float) -> Measurement | None:
    """Return the rate of a transfer; None if it was too short, or its shards did not run at the same time."""
    if not shards:
        return None
    began, last = min(one.began for one in shards), max(one.began for one in shards)
    seconds = max(one.ended for one in shards) - began
    size = sum(one.size for one in shards)
    if seconds < _LEAST_SECONDS or size < _LEAST_BYTES or last - began > _TOGETHER * seconds:
        return None
    return Measurement(len(shards), size / seconds, at)


def useful_nodes(asked: int, known: Iterable[Measurement]) -> int:
    """Return how many of the nodes that were asked for are useful, by earlier transfers with fewer and with more nodes."""
    best: dict[int, float] = {}
    for one in known:
        best[one.nodes] = max(one.rate, best.get(one.nodes, 0.0))
    fastest = max(best.values(), default=0.0)
    enough = min((nodes for nodes, rate in best.items() if rate * _GAIN >= fastest), default=asked)
    return enough if enough < max(best, default=0) and enough < asked else asked


class RatesFile:
    """The measurements between two places, in the ledger."""

    def __init__(self, source: Location, target: Location, site: str) -> None:
        places = [[each.site.name, each.bucket] for each in (source, target)]
        key = canonical_digest({"places": places, "nodes": site})
        self._name = key[:32]

    @property
    def _path(self) -> Path:
        return ledger_folder("nodes", "rates") / f"{self._name}.json"

    def read(self) -> list[Measurement]:
        """Return the measurements of the last month; none if the file is damaged."""
        since = time.time() - _FORGOTTEN_SECONDS
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            rows = json.loads(read_regular(self._path, _MOST_BYTES))["measurements"]
            found = [Measurement(int(nodes), float(rate), float(at)) for nodes, rate, at in rows]
            return [one for one in found if one.at > since and one.nodes > 0 and one.rate > 0]
        return []

    def add(self, measurement: Measurement) -> None:
        """Add a measurement; a full disk is ignored."""
        record = {"schema": 1, "measurements": [*self.read(), measurement][-_KEPT:]}
        with contextlib.suppress(OSError):
            write_atomic(self._path, json.dumps(record).encode("ascii") + b"\n")
