"""Bytes straight from one ssh site to another; we say what, and compare what both ends hashed."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing

from hibali.events import Event, Listener, ignore
from transfers.connection import Connection
from transfers.direct_landing import unit_bytes
from transfers.mover import Source
from transfers.movers.stream import StreamMover, Told
from transfers.packing import group_units
from transfers.posix import PosixStore
from transfers.single import SingleSource
from transfers.store import Item, Landed, Store, Unit


class DirectMover(StreamMover):
    """The Mover protocol (transfers.mover.Mover); what arrives corrupt is sent again, and a rate is kept, as a stream does it."""

    word = "direct"

    def __init__(self, line: Connection, landing: PosixStore, rate: int = 0, tell: Listener = ignore) -> None:
        """`line` leads to an agent at the source's site that has reached the target's (transfers.direct.Way)."""
        super().__init__(rate, tell)
        self._line = line
        self._landing = landing

    def _once(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Landed, None, None]:
        piece = max(source.facts.segment_bytes, target.facts.segment_bytes)
        told = Told(self._tell)
        units = self._paced(
            group_units(self._while_room(items), lambda: piece, target.begun, together=self._together)
        )
        read_as = source.name if isinstance(source, SingleSource) else None

        def passed(unit: Unit) -> None:
            told.tell_progress(unit, unit_bytes(unit))

        with closing(self._landing.write_direct(self._line, units, read_as, passed)) as landing:
            for landed in landing:
                self._note_full(landed)
                yield landed

    def _paced(self, units: Iterable[Unit]) -> Iterator[Unit]:
        for unit in units:
            self._pace.take(unit_bytes(unit))
            yield unit
