"""Grouping items into the units that travel: packs of small files, segments of large ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from transfers.store import PACK_BYTES, PACK_ITEMS, Item, Unit


def group_units(
    items: Iterable[Item], piece_bytes: Callable[[], int], begun: Callable[[Item], int] | None = None
) -> Iterator[Unit]:
    """Units in the order of the items: a file larger than a pack goes in segments, everything else packed.

    `piece_bytes` tells how large the next segment is to be; `begun`, how much of a large file is at the target already:
    its segments start behind that.
    """
    pack: list[Item] = []
    size = 0
    for item in items:
        length = item.entry.size if item.carries else 0
        if length > PACK_BYTES:
            yield from _segments(item, begun(item) if begun else 0, piece_bytes)
            continue
        length += len(item.attributes or b"")
        if pack and (size + length > PACK_BYTES or len(pack) >= PACK_ITEMS):
            yield Unit(tuple(pack))
            pack, size = [], 0
        pack.append(item)
        size += length
    if pack:
        yield Unit(tuple(pack))


def _segments(item: Item, offset: int, piece_bytes: Callable[[], int]) -> Iterator[Unit]:
    size = item.entry.size
    while offset < size:
        length = min(piece_bytes(), size - offset)
        yield Unit((item,), offset, length, segment=True)
        offset += length
