"""Grouping items into the units that travel: packs of small files, segments of large ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from transfers.store import PACK_BYTES, PACK_ITEMS, SEGMENT_BYTES, Item, Unit


def group_units(
    items: Iterable[Item], segment_bytes: int, begun: Callable[[Item], int] | None = None
) -> Iterator[Unit]:
    """Units in the order of the items: a file larger than a pack goes in segments, everything else packed.

    `begun` tells how much of a large file is at the target already: its segments start behind that.
    """
    piece = min(segment_bytes, SEGMENT_BYTES)
    pack: list[Item] = []
    size = 0
    for item in items:
        length = item.entry.size if item.carries else 0
        if length > PACK_BYTES:
            for offset in range(begun(item) if begun else 0, length, piece):
                yield Unit((item,), offset, min(piece, length - offset), segment=True)
            continue
        length += len(item.attributes or b"")
        if pack and (size + length > PACK_BYTES or len(pack) >= PACK_ITEMS):
            yield Unit(tuple(pack))
            pack, size = [], 0
        pack.append(item)
        size += length
    if pack:
        yield Unit(tuple(pack))
