"""Test that listings in pages skip equal pages and give the same plan as whole listings."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.errors import IncompleteError
from transfers.agent import protocol
from transfers.agent.listing import Pages
from transfers.agent.protocol import Record
from transfers.model.store import Page
from transfers.model.units import ListingIncompleteError
from transfers.remote.agent_host import entries_of
from transfers.stores.agent_listing import AgentListing, BothSides


class Understands:
    """The part of a connection that a listing needs."""

    subject = "there"

    @contextlib.contextmanager
    def understanding(self) -> Iterator[None]:
        try:
            yield
        except (KeyError, TypeError, ValueError) as problem:
            raise IncompleteError("listing-violation", str(problem), subject="there") from None


def file(path: bytes, **more: Any) -> Record:
    plain = Record(path, b"f", 3, 1_600_000_000_000_000_001, 0o100644, 1, 2, 1, 5, b"", 0, 4096)
    return plain._replace(**more)


def folder(path: bytes) -> Record:
    return file(path, kind=b"d", size=4096)


def order(record: Record) -> bytes:
    return record.path + b"/" if record.kind == b"d" else record.path


def frames(records: Sequence[Record], each: int = 1000, **closing: Any) -> Iterator[protocol.Frame]:
    pages, header = Pages(), {"count": len(records), "orphans": [], "problems": [], **closing}
    for number, record in enumerate(sorted(records, key=order)):
        pages.add(record.path if record.kind == b"d" else record.path.rpartition(b"/")[0], [record])
        if number % each == each - 1:
            pages.end()
            yield protocol.Frame(protocol.REPLY, {"pages": pages.pages}, bytes(pages.block))
            pages.clear()
    pages.end()
    yield protocol.Frame(protocol.END, {**header, "pages": pages.pages}, bytes(pages.block))


def listing(records: Sequence[Record], each: int = 1000, **closing: Any) -> AgentListing:
    return AgentListing(frames(records, each, **closing), Understands(), lambda _: None)  # type: ignore[arg-type]


def tree(folders: int, files: int) -> list[Record]:
    names = [f"d{number}".encode() for number in range(folders)]
    return [folder(name) for name in names] + [
        file(b"%s/f%d" % (name, number)) for name in names for number in range(files)
    ]


def differences(
    at_source: Sequence[Record], at_target: Sequence[Record], each: int = 1000
) -> tuple[list[bytes], list[bytes], int]:
    """Return the entries of each side that differ, and the number of skipped files."""
    passed: list[Page] = []
    both = BothSides(listing(at_source, each), listing(at_target, each), passed.append)
    source, target = both.source(), both.target()
    source_left, target_left = next(source, None), next(target, None)
    seen: tuple[list[bytes], list[bytes]] = ([], [])
    while source_left is not None or target_left is not None:  # like the merge
        if target_left is None or (source_left is not None and source_left.order <= target_left.order):
            assert source_left is not None
            same = target_left is not None and source_left.order == target_left.order
            seen[0].append(source_left.path)
            source_left = next(source, None)
            if same:
                assert target_left is not None
                seen[1].append(target_left.path)
                target_left = next(target, None)
        else:
            seen[1].append(target_left.path)
            target_left = next(target, None)
    return *seen, sum(page.files for page in passed)


def test_unchanged_pages_are_skipped() -> None:
    records = tree(20, 30)
    other_disk = [record._replace(device=9, inode=9, ctime_ns=9, allocated=0, links=2) for record in records]
    assert differences(records, other_disk) == ([], [], 600)
    folders_differ = [
        record._replace(mtime_ns=7, size=1) if record.kind == b"d" else record for record in records
    ]
    assert differences(records, folders_differ) == ([], [], 600)


@pytest.mark.parametrize(
    "change",
    [
        {"size": 4},
        {"mtime_ns": 1},
        {"mode": 0o100744},
        {"kind": b"l", "link": b"x"},
        {"kind": b"s"},
        {"path": b"d3/f7x"},
    ],
)
def test_a_change_is_found_only_in_its_folder(change: dict[str, Any]) -> None:
    records = tree(20, 30)
    changed = [record._replace(**change) if record.path == b"d3/f7" else record for record in records]
    source_left, target_left, passed = differences(records, changed)
    assert b"d3/f7" in source_left
    assert all(path.startswith(b"d3") for path in source_left + target_left)
    assert 19 * 30 <= passed < 20 * 30


def test_in_a_flat_folder_only_changed_pages_are_read() -> None:
    records = [file(b"name-%06d" % number) for number in range(20_000)]
    changed = [record for record in records if record.path != b"name-010000"]
    source_left, target_left, passed = differences(records, changed, each=3000)
    assert b"name-010000" in source_left
    assert len(source_left) < 8000
    assert passed == 20_000 - len(source_left)
    assert len(target_left) == len(source_left) - 1


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_every_difference_is_found_at_any_frame_boundaries(seed: int, each: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # it makes trees
    records = [*tree(chance.randint(1, 6), chance.randint(0, 8)), file(b"a"), file(b"z")]
    at_target = [record for record in records if chance.random() > 0.1]
    at_target = [
        record._replace(size=9) if record.kind == b"f" and chance.random() < 0.1 else record
        for record in at_target
    ]
    source_left, target_left, passed = differences(records, at_target, each)
    same = {order(record): record.size for record in records}.items() & {
        order(record): record.size for record in at_target
    }.items()
    assert {record.path for record in records if (order(record), record.size) not in same} <= set(source_left)
    assert {record.path for record in at_target if (order(record), record.size) not in same} <= set(
        target_left
    )
    assert source_left == sorted(source_left)
    files = [record for record in records if record.kind == b"f"]
    assert passed + sum(record.path in set(source_left) for record in files) == len(files)


def test_special_files_are_never_skipped() -> None:
    records = [file(b"fifo", kind=b"s")]
    assert differences(records, records)[:2] == ([b"fifo"], [b"fifo"])


def test_different_pages_have_different_digests() -> None:
    one = [file(b"a", size=1, mtime_ns=23)]
    target_left = [file(b"a", size=12, mtime_ns=3)]
    assert differences(one, target_left)[2] == 0
    link = [file(b"a", kind=b"l", link=b"f3 5 0")]
    assert differences(link, [file(b"a", size=3, mtime_ns=5, mode=0)])[2] == 0


def test_a_listing_with_wrong_counts_is_refused() -> None:
    records = tree(2, 3)
    with pytest.raises(IncompleteError, match="were announced"):
        list(listing(records, count=7))
    with pytest.raises(ListingIncompleteError):
        list(listing(records, problems=[["d0/f9", ["denied", "no permission", False]]]))
    good = list(frames(records))[-1]
    names, files, size, length, digest = good.header["pages"][0]
    for pages in (
        [[names + 1, files, size, length, digest], *good.header["pages"][1:]],
        [[names, files, size, length + 1, digest], *good.header["pages"][1:]],
        [[0, files, size, length, digest], *good.header["pages"][1:]],
        good.header["pages"][1:],
        [["x"]],
    ):
        bad = replace_header(good, pages)
        with pytest.raises(IncompleteError):
            list(AgentListing(iter([bad]), Understands(), lambda _: None))  # type: ignore[arg-type]


def replace_header(frame: protocol.Frame, pages: Any) -> protocol.Frame:
    return frame._replace(header={**frame.header, "pages": pages})


def test_the_order_of_skipped_pages_is_checked() -> None:
    def twice() -> Iterator[protocol.Frame]:
        [frame] = frames([file(b"a")])
        yield frame._replace(kind=protocol.REPLY)
        yield frame

    passing = AgentListing(twice(), Understands(), lambda _: None)  # type: ignore[arg-type]
    assert passing.page is not None
    passing.skip_page()
    assert passing.page is not None
    with pytest.raises(IncompleteError, match="order"):
        passing.skip_page()


def test_packed_records_are_read_back() -> None:
    pages = Pages()
    pages.add(b"", [file(b"a")])
    pages.end()
    [entry] = entries_of(bytes(pages.block), "x")
    assert (entry.path, entry.size, entry.links) == (b"a", 3, 1)
