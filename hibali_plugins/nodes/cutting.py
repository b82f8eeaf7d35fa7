"""Cut the items of a plan into units, and give each unit to the shard that has least to do."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from transfers.model.units import PACK_BYTES, PACK_ITEMS, Item

# A pack of smaller files takes the time of its requests, a larger one that of its bytes. How these compare depends on the network,
# so each kind is divided equally by itself.
SMALL_BYTES = 256 * 1024
_LEAST_PIECE = 8 * 1024 * 1024
_MOST_PIECES = 5000  # of one file, so that the records of a file of any size stay small
# The source is hashed whole by one shard while all send its pieces; hashing is faster than a node's share of a network.
_HASHING = 8


class Unit(NamedTuple):
    """A unit of one shard.

    Attributes:
        number: its number, which is unique in the transfer.
        kind: `pack` (whole files), `piece` (a range of one file), `digest` (hash a whole file at the source) or `finish` (name a file).
        items: its files; one except for a pack.
        offset: the start of a piece.
        length: its length.
    """

    number: int
    kind: str
    items: tuple[Item, ...]
    offset: int = 0
    length: int = 0


@dataclass(slots=True)
class LargeFile:
    """A file that is moved in pieces, by the numbers of its units; `digest` is None if the source has recorded the digest."""

    item: Item
    piece_bytes: int
    pieces: list[int] = field(default_factory=list)
    digest: int | None = None
    finish: int | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """How a transfer is cut.

    Attributes:
        shards: their number.
        whole_bytes: the largest file that is moved whole.
        hashes: whether large files are hashed at the source by a unit of its own.
        finishes: whether a large file gets its name by a unit of its own.
        piece_unit: pieces are multiples of this size.
    """

    shards: int
    whole_bytes: int
    hashes: bool
    finishes: bool
    piece_unit: int = _LEAST_PIECE

    def piece_bytes(self, size: int) -> int:
        """Return the size of the pieces of a file."""
        wanted = max(_LEAST_PIECE, -(-size // _MOST_PIECES))
        return -(-wanted // self.piece_unit) * self.piece_unit


class Cutter:
    """Cuts items as they come; holds one pack."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._files = [(0, shard) for shard in range(1, cut.shards + 1)]  # heaps of loads: small files,
        self._bytes = [(0, shard) for shard in range(1, cut.shards + 1)]  # and bytes of larger ones
        self._next = 0
        self._pack: list[Item] = []
        self._packed = 0
        self.large: list[LargeFile] = []

    def cut(self, items: Iterable[Item]) -> Iterator[tuple[int, Unit]]:
        """Yield each unit with the number of its shard, from 1."""
        for item in items:
            if item.entry.size > self._cut.whole_bytes:
                yield from self._cut_large(item)
                continue
            size = item.entry.size + len(item.attributes or b"")
            if self._pack and (self._packed + size > PACK_BYTES or len(self._pack) >= PACK_ITEMS):
                yield self._close_pack()
            self._pack.append(item)
            self._packed += size
        if self._pack:
            yield self._close_pack()

    def _close_pack(self) -> tuple[int, Unit]:
        items, self._pack = tuple(self._pack), []
        size, self._packed = self._packed, 0
        if size < len(items) * SMALL_BYTES:
            shard = _assign(self._files, len(items))
        else:
            shard = _assign(self._bytes, size)
        return shard, Unit(self._number(), "pack", items)

    def _cut_large(self, item: Item) -> Iterator[tuple[int, Unit]]:
        size = item.entry.size
        large = LargeFile(item, self._cut.piece_bytes(size))
        for offset in range(0, size, large.piece_bytes):
            length = min(large.piece_bytes, size - offset)
            unit = Unit(self._number(), "piece", (item,), offset, length)
            large.pieces.append(unit.number)
            yield _assign(self._bytes, length), unit
        if self._cut.hashes:
            large.digest = self._number()
            yield _assign(self._bytes, size // _HASHING), Unit(large.digest, "digest", (item,))
        if self._cut.finishes:
            large.finish = self._number()  # whichever shard finds all pieces complete does it
        self.large.append(large)

    def _number(self) -> int:
        self._next += 1
        return self._next - 1


def _assign(loads: list[tuple[int, int]], cost: int) -> int:
    """Give a cost to the shard with the least load of a heap; return its number."""
    load, shard = heapq.heappop(loads)
    heapq.heappush(loads, (load + cost, shard))
    return shard
