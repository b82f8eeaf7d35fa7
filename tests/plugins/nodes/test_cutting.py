"""Properties of the cut of a transfer into shards: nothing is lost or moved twice, and the shards have equal work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali_plugins.nodes.cutting import SMALL_BYTES, Cut, Cutter
from transfers.model.entry import Entry, Kind
from transfers.model.units import PACK_BYTES, PACK_ITEMS, Item

MIB = 1 << 20
# a file of a terabyte has thousands of pieces: more than two of them show nothing else
sizes = st.tuples(
    st.lists(st.one_of(st.integers(0, 3 * MIB), st.integers(0, 2 << 30)), max_size=30),
    st.lists(st.integers(1 << 40, 1 << 41), max_size=2),
).flatmap(lambda found: st.permutations(found[0] + found[1]))


def items_of(found: list[int]) -> list[Item]:
    return [Item(number, Entry(b"%d" % number, Kind.FILE, size)) for number, size in enumerate(found)]


@pytest.mark.heavy
@given(sizes, st.integers(1, 16), st.booleans(), st.booleans())
def test_every_byte_is_in_exactly_one_unit(
    found: list[int], shards: int, hashes: bool, finishes: bool
) -> None:
    cutter = Cutter(Cut(shards, 32 * MIB, hashes=hashes, finishes=finishes))
    units = list(cutter.cut(items_of(found)))
    numbers = [unit.number for _, unit in units] + [
        each.finish for each in cutter.large if each.finish is not None
    ]
    assert sorted(numbers) == list(range(len(numbers)))
    assert all(1 <= shard <= shards for shard, _ in units)
    whole = [item.number for _, unit in units if unit.kind == "pack" for item in unit.items]
    pieces: dict[int, int] = {}
    for _, unit in units:
        if unit.kind == "piece":
            [item] = unit.items
            assert unit.offset == pieces.get(item.number, 0), "in order and without gaps"
            pieces[item.number] = unit.offset + unit.length
    assert sorted(whole + list(pieces)) == list(range(len(found)))
    assert all(reached == found[number] for number, reached in pieces.items())
    for _, unit in units:
        if unit.kind == "pack":
            assert len(unit.items) <= PACK_ITEMS
            assert len(unit.items) == 1 or sum(item.entry.size for item in unit.items) <= PACK_BYTES


@given(st.lists(st.integers(0, 1 << 33), min_size=1, max_size=60), st.integers(2, 8))
def test_each_shard_has_its_share_of_small_files_and_of_bytes(found: list[int], shards: int) -> None:
    cutter = Cutter(Cut(shards, 32 * MIB, hashes=False, finishes=True))
    files, size = (dict.fromkeys(range(1, shards + 1), 0) for _ in range(2))
    largest = 0
    for shard, unit in cutter.cut(items_of(found)):
        whole = unit.kind == "pack"
        length = sum(each.entry.size for each in unit.items) if whole else unit.length
        if whole and length < len(unit.items) * SMALL_BYTES:
            files[shard] += len(unit.items)
        else:
            size[shard] += length
            largest = max(largest, length)
    assert max(files.values()) <= sum(files.values()) / shards + PACK_ITEMS
    assert max(size.values()) <= sum(size.values()) / shards + largest


@given(st.integers(1, 5 << 40))
def test_pieces_fit_the_limits_of_an_upload(size: int) -> None:
    piece = Cut(4, 32 * MIB, hashes=True, finishes=False).piece_bytes(size)
    assert -(-size // piece) <= 10_000
    assert 5 * MIB <= piece <= 5 << 30
