"""Small files into packs: read from one store, written as tar files with an index each at another."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator

from hibali.events import Event, Listener, Packed, Retried, ignore
from hibali.retry import Pace
from hibali.text import printable
from transfers.entry import Kind, Proof, weakest
from transfers.mover import Source
from transfers.movers.stream import FULL, ROUNDS, Watched
from transfers.packing import group_units
from transfers.packs.index import Member, Pack
from transfers.packs.layout import Layout, gather, lay_out
from transfers.packs.target import PackedTarget
from transfers.packs.writing import PackWriting, land
from transfers.store import SEGMENT_BYTES, Item, Landed, Problem, Store

_NOT_LANDED = Problem("not-answered", "the store did not say what became of its pack")


class PackMover:
    """The Mover protocol (transfers.mover.Mover) into a packed place."""

    word = "stream"

    def __init__(self, pack_bytes: int, rate: int = 0, tell: Listener = ignore) -> None:
        """No pack is to have more than `pack_bytes`, but one of a single larger file; the others as StreamMover has them."""
        self._pack_bytes = pack_bytes
        self._tell = tell
        self._pace = Pace(rate)
        self._full = threading.Event()

    @property
    def slowed(self) -> bool:
        """Whether it was the rate that made it take so long."""
        return self._pace.slows

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Landed, None, None]:
        """See Mover. What arrives corrupt goes into a further pack a bounded number of times, then it is told."""
        assert isinstance(target, PackedTarget)
        coming = items
        for round_number in range(1, ROUNDS + 1):
            again: list[Item] = []
            for some in gather(self._while_room(coming), self._pack_bytes):
                for event in self._make(source, target, some):
                    problem = event.problem if isinstance(event, Landed) else None
                    if isinstance(event, Landed) and problem and problem.again and round_number < ROUNDS:
                        again.append(event.item)
                        path = printable(event.item.entry.path)
                        yield Retried(path, round_number, 0.0, problem.message)
                    else:
                        yield event
            if not again:
                break
            coming = again
        target.clean()

    def _while_room(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            if self._full.is_set():
                return
            yield item

    def _make(
        self, source: Source, target: PackedTarget, items: list[Item]
    ) -> Generator[Event | Landed, None, None]:
        """One pack: its tar file, then its index, and only then anything has landed."""
        store = target.place.store
        piece = min(SEGMENT_BYTES, max(source.facts.segment_bytes, store.facts.segment_bytes))
        generation = target.next_generation()
        layout = lay_out(items, generation, piece)
        writing = PackWriting(layout, source)
        standing = next((one for one in target.place.leftovers() if one.path == layout.tar.path), None)
        tar = Item(generation, layout.tar, standing)
        watched = Watched(self._pace, self._tell)
        units = group_units([tar], lambda: piece, store.begun)
        landed = land(store, watched.watch(writing.payloads(units)))
        for item, problem in writing.failed:
            yield Landed(item, None, Proof.NONE, problem=problem)
        for item in writing.unpacked():
            yield self._failed(item, landed.problem if landed else None)
        if landed is None or landed.problem is not None:
            for packed in writing.packed:
                yield self._failed(packed.item, landed.problem if landed else None)
            return
        yield from self._index(target, layout, writing, landed.proof)

    def _index(
        self, target: PackedTarget, layout: Layout, writing: PackWriting, proof: Proof
    ) -> Generator[Event | Landed, None, None]:
        pack = Pack(layout.name, layout.tar.size, writing.digest)
        members = [Member(packed.entry, pack.generation) for packed in writing.packed]
        members += _cleared(target, [packed.item for packed in writing.packed], pack.generation)
        indexed = target.land_index(pack, members, layout.tar.mtime_ns)
        if indexed.problem is None:
            yield Packed(layout.tar.path, pack.size, len(writing.packed), writing.digest)
        for packed in writing.packed:
            if indexed.problem is not None:
                yield self._failed(packed.item, indexed.problem)
            else:
                yield Landed(
                    packed.item, packed.entry.digest, weakest(packed.proof, proof), packed.entry.etag
                )

    def _failed(self, item: Item, problem: Problem | None) -> Landed:
        problem = problem or _NOT_LANDED
        if problem.code in FULL:
            self._full.set()
        return Landed(item, None, Proof.NONE, problem=problem)


def _cleared(target: PackedTarget, items: list[Item], generation: int) -> Iterator[Member]:
    """What is of another kind and was agreed to make room: the file of a folder's name, or a folder with all below it."""
    folders = set()
    for item in items:
        standing = item.replaces
        if standing is None or standing.order == item.entry.order:
            continue
        if standing.kind is Kind.FOLDER:
            folders.add(item.entry.path)
        else:
            yield Member(standing, generation, gone=True)
    for entry in target.below(folders):
        yield Member(entry, generation, gone=True)
