"""Grouping items into the units that travel: packs of small files, segments of large ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from transfers.store import PACK_BYTES, PACK_ITEMS, Item, Unit


def group_units(
    items: Iterable[Item],
    piece_bytes: Callable[[], int],
    begun: Callable[[Item], int] | None = None,
    *,
    large: int = PACK_BYTES,
    together: int = PACK_BYTES,
) -> Iterator[Unit]:
    """Units in the order of the items: a file larger than `large`, a pack, goes in segments, everything else packed.

    A pack holds `together` bytes at most, or one file. `piece_bytes` tells how large the next segment is to be; `begun`, how much of a large file is at the target already:
    its segments start behind that.
    """
    pack: list[Item] = []
    size = 0
    for item in items:
        length = item.entry.size if item.carries else 0
        if length > large:
            yield from _segments(item, begun(item) if begun else 0, piece_bytes)
            continue
        length += len(item.attributes or b"")
        if pack and (size + length > together or len(pack) >= PACK_ITEMS):
            yield Unit(tuple(pack))
            pack, size = [], 0
        pack.append(item)
        size += length
    if pack:
        yield Unit(tuple(pack))


def packed_together(rate: int) -> int:
    """How much a pack holds where `rate` bytes a second may go, 0 for no limit: a second's worth, or small files would all go at once."""
    return min(PACK_BYTES, rate) if rate else PACK_BYTES


def _segments(item: Item, offset: int, piece_bytes: Callable[[], int]) -> Iterator[Unit]:
    size = item.entry.size
    while offset < size:
        length = min(piece_bytes(), size - offset)
        yield Unit((item,), offset, length, segment=True)
        offset += length


def fill_gaps(
    units: Iterable[Unit], is_known: Callable[[Item], bool] = lambda _: False
) -> Iterator[tuple[Unit, bool]]:
    """Each unit with True, and before one that continues a file the units that its digest alone needs, with False.

    A source that cannot hash where its files are has to read the beginning of a file again that the target already has.

    Args:
        units: in the order in which they are read; a `piece` needs no digest.
        is_known: whether the digest of a file needs no reading.
    """
    reached: dict[int, int] = {}
    for unit in units:
        item = unit.items[0] if unit.segment and not unit.piece else None
        if item is not None:
            start = reached.pop(item.number, 0)
            step = max(unit.length, PACK_BYTES)  # the rest of a file behind the gap may be a few bytes
            for offset in range(start, 0 if is_known(item) else unit.offset, step):
                yield replace(unit, offset=offset, length=min(step, unit.offset - offset)), False
            if not unit.last:
                reached[item.number] = unit.offset + unit.length
        yield unit, True
