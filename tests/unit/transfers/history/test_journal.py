"""Test the recorded digests of a location in the ledger."""

import json
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import pytest

from hibali.config.model import Site
from hibali.ledger import Journal, ledger_folder
from hibali.locations import Location
from hibali.text import path_fields
from transfers.history.recorded_digests import recorded_digests

HERE = Location(Site("here", "local"), "/data", "/data")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path / "state"))


def write(name: str, place: bytes, *records: dict[str, object], site: str = "here", at: str = "") -> None:
    with Journal(ledger_folder("operations") / f"{name}.jsonl") as journal:
        journal.append({"kind": "operation", "id": name, "at": at})
        journal.append({"kind": "place", "site": site, "bucket": None, **path_fields(place, "place")})
        for record in records:
            journal.append(record)


def test_operations_of_one_second_are_read_in_the_order_of_their_start() -> None:
    write("20260101-000000-ffffffff", b"/data", moved(b"a", "1"), at="2026-01-01T00:00:00.1Z")
    write("20260101-000000-00000000", b"/data", moved(b"a", "2"), at="2026-01-01T00:00:00.2Z")
    assert digests(b"/data") == {b"a": "2"}


def moved(path: bytes, digest: str) -> dict[str, object]:
    return {"kind": "moved", **path_fields(path), "entry": "file", "size": 1, "sha256": digest}


def digests(where: bytes) -> dict[bytes, str]:
    return {path: expected.digest for path, expected in recorded_digests(HERE, where).items()}


def test_later_operations_win_and_deletions_are_forgotten() -> None:
    write("1", b"/data", moved(b"a", "1"), moved(b"b", "1"))
    write("2", b"/data", moved(b"a", "2"), {"kind": "deleted", **path_fields(b"b")})
    assert digests(b"/data") == {b"a": "2"}


def test_operations_on_parent_and_child_folders_are_included() -> None:
    write("1", b"/data", moved(b"sub/a", "1"), moved(b"other", "1"))
    write("2", b"/data/sub/deep", moved(b"b", "2"))
    assert digests(b"/data/sub") == {b"a": "1", b"deep/b": "2"}


def test_a_folder_with_the_same_name_prefix_is_another_location() -> None:
    write("1", b"/data2", moved(b"a", "1"))
    write("2", b"/data", moved(b"a", "2"), site="elsewhere")
    assert digests(b"/data") == {}


def test_records_of_an_empty_location_are_dropped() -> None:
    write("1", b"/data", moved(b"a", "1"))
    write("2", b"/data", {"kind": "empty"}, moved(b"b", "2"))
    assert digests(b"/data") == {b"b": "2"}


def test_an_incomplete_line_after_a_crash_is_skipped() -> None:
    write("1", b"/data", moved(b"\xff", "1"))
    with (ledger_folder("operations") / "1.jsonl").open("ab") as stream:
        stream.write(b'{"kind":"moved","pa')
    assert digests(b"/data") == {b"\xff": "1"}


def test_only_the_lines_of_wanted_files_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [b"a", b"sub/a", b"sub/b", b"sub/\xff", "sub/ä".encode(), b'sub/"', b"sub/gone", b"sub/again"]
    write("1", b"/data", *(moved(path, "1") for path in names))
    linked = {"kind": "linked", **path_fields(b"second"), **path_fields(b"a", "same_as")}
    write("2", b"/data/sub", {"kind": "deleted", **path_fields(b"gone"), "entry": "file"}, moved(b"a", "2"))
    write("3", b"/data", linked, *(moved(b"sub/other%d" % number, "1") for number in range(100)))
    write("4", b"/data/sub/deep", {"kind": "empty"}, moved(b"x", "1"))
    for where in (b"/data", b"/data/sub", b"/data/sub/deep", b"/data/sub/a"):
        whole = recorded_digests(HERE, where)
        assert recorded_digests(HERE, where, set(whole)) == whole
        for path in whole.keys() - {b"second"}:
            assert recorded_digests(HERE, where, {path}) == {path: whole[path]}
    parsed = Mock(wraps=json.loads)
    monkeypatch.setattr("hibali.ledger.json.loads", parsed)
    assert recorded_digests(HERE, b"/data", {b"sub/a"})[b"sub/a"].digest == "2"
    assert parsed.call_count < 100  # of 111 lines of files, and others of the index


def test_memory_does_not_grow_with_the_lines_of_unwanted_files() -> None:
    write("1", b"/data", *(moved(b"sub/%05d" % number, "0" * 64) for number in range(5000)))
    recorded_digests(HERE, b"/data", {b"sub/00007"})  # makes the index
    tracemalloc.start()
    known = recorded_digests(HERE, b"/data", {b"sub/00007"})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(known) == 1
    assert peak < 600_000  # all lines would need twice as much
