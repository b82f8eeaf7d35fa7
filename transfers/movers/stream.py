"""Bytes through this machine: read from one store, landed at another, hashed at both ends."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TypeGuard

from hibali.events import Carried, Event
from hibali.retry import Pace
from transfers.entry import Kind, Proof, weakest
from transfers.mover import Source
from transfers.packing import group_units
from transfers.store import Item, Landed, Payload, Store

_ROUNDS = 3  # an item that may succeed when sent again is sent at most this often
_FULL = frozenset({"no-space", "no-quota", "read-only"})


class StreamMover:
    """The Mover protocol (transfers.mover.Mover)."""

    def __init__(self, rate: int = 0) -> None:
        """`rate` is the most bytes a second, 0 for no limit."""
        self._pace = Pace(rate)
        self._full = threading.Event()

    @property
    def slowed(self) -> bool:
        """Whether it was the rate that made it take so long."""
        return self._pace.slows

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Landed, None, None]:
        """See Mover. What arrives corrupt is sent again a bounded number of times, then told."""
        coming = items
        for round_number in range(1, _ROUNDS + 1):
            again: list[Item] = []
            with closing(self._once(source, target, coming)) as events:
                for event in events:
                    if _again(event) and round_number < _ROUNDS:
                        again.append(event.item)
                    else:
                        yield event
            if not again:
                return
            coming = again

    def _once(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Landed, None, None]:
        piece = min(16 * 1024 * 1024, max(source.facts.segment_bytes, target.facts.segment_bytes))
        watched = _Watched(self._pace)
        units = group_units(self._while_room(items), piece, target.begun)
        with closing(target.write(watched.watch(source.read(units)))) as landing:
            for landed in landing:
                yield from watched.carried()
                if landed.problem is not None and landed.problem.code in _FULL:
                    self._full.set()
                proof = watched.proofs.pop(landed.item.number, Proof.DIGEST)
                yield landed if landed.problem else replace(landed, proof=weakest(landed.proof, proof))
        yield from watched.carried()

    def _while_room(self, items: Iterable[Item]) -> Iterator[Item]:
        """A full target is not tried again for every file that is left."""
        for item in items:
            if self._full.is_set():
                return
            yield item


def _again(event: Event | Landed) -> TypeGuard[Landed]:
    """Whether this is an item that may succeed when it is sent again."""
    return isinstance(event, Landed) and event.problem is not None and event.problem.again


class _Watched:
    """What the source said of its half, kept until the target answers; filled by the sending thread."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.proofs: dict[int, Proof] = {}
        self._bytes = 0
        self._told = 0

    def watch(self, payloads: Iterable[Payload]) -> Iterator[Payload]:
        for payload in payloads:
            for position, item in enumerate(payload.unit.items):
                proof = payload.proofs[position] if payload.proofs else Proof.DIGEST
                if item.entry.kind is Kind.FILE and proof is not Proof.DIGEST:
                    self.proofs[item.number] = proof
            self._pace.take(len(payload.data))
            self._bytes += len(payload.data)
            yield payload

    def carried(self) -> Iterator[Carried]:
        """Bytes that left since the last time."""
        now = self._bytes
        if now > self._told:
            yield Carried(now - self._told)
            self._told = now
