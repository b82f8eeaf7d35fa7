"""Test how items are grouped into batches."""

from transfers.model.entry import Entry, Kind
from transfers.model.units import PACK_BYTES, PACK_ITEMS, Item
from transfers.pipeline.batches import group_units, packed_together


def item(number: int, size: int, kind: Kind = Kind.FILE) -> Item:
    return Item(number, Entry(b"%d" % number, kind, size))


def test_pack_is_limited_by_bytes_and_count() -> None:
    units = list(group_units([item(n, PACK_BYTES // 2) for n in range(5)], lambda: 1 << 22))
    assert [len(unit.items) for unit in units] == [2, 2, 1]
    units = list(group_units([item(n, 0) for n in range(PACK_ITEMS + 1)], lambda: 1 << 22))
    assert [len(unit.items) for unit in units] == [PACK_ITEMS, 1]


def test_large_file_is_split_without_gaps() -> None:
    size = PACK_BYTES * 2 + 5
    units = list(group_units([item(0, 3), item(1, size), item(2, 4)], lambda: 1 << 22))
    segments = [unit for unit in units if unit.segment]
    assert [(unit.offset, unit.length) for unit in segments] == [
        (0, 1 << 22),
        (1 << 22, 1 << 22),
        (1 << 23, 5),
    ]
    assert [unit.last for unit in segments] == [False, False, True]
    assert [i.number for unit in units if not unit.segment for i in unit.items] == [0, 2]


def test_segment_size_may_change_within_a_file() -> None:
    sizes = iter([4, 4, 1, 1, 1])
    units = list(group_units([item(0, 10 << 20)], lambda: next(sizes) << 20))
    assert [unit.length >> 20 for unit in units] == [4, 4, 1, 1]


def test_pack_holds_one_second_at_the_rate_limit() -> None:
    items = [item(number, 24 * 1024) for number in range(130)]
    packs = list(group_units(items, lambda: 1 << 22, together=packed_together(100_000)))
    assert max(sum(each.entry.size for each in pack.items) for pack in packs) <= 100_000
    assert [each for pack in packs for each in pack.items] == items
    assert packed_together(0) == PACK_BYTES
    assert len(list(group_units(items, lambda: 1 << 22, together=packed_together(1)))) == 130
