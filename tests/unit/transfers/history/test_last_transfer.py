"""Test which transfer of a folder is its last one, and what the ledger knows about the files after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hibali.ledger import Journal, ledger_folder
from hibali.text import path_fields
from transfers.history.index import read_operations
from transfers.history.last_transfer import (
    KnownFile,
    KnownFiles,
    LastTransfer,
    find_last_transfer,
    read_known_files,
)
from transfers.history.operations import OperationRoot
from transfers.model.entry import Kind

HERE, THERE = OperationRoot("here", None, b"/data"), OperationRoot("there", None, b"/far/data")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path / "state"))


def write(
    hour: int,
    origin: OperationRoot,
    place: OperationRoot,
    *records: dict[str, Any],
    operation: str = "push",
    single: bool = False,
    receipt: dict[str, Any] | None = None,
) -> None:
    name = f"20260101-{hour:02d}0000-00000000"
    with Journal(ledger_folder("operations") / f"{name}.jsonl") as journal:
        at = f"2026-01-01T{hour:02d}:00:00.000000Z"
        ends = {"source": "typed source", "target": "typed target"}
        journal.append({"kind": "operation", "id": name, "operation": operation, "at": at, **ends})
        for kind, root in (("origin", origin), ("place", place)):
            fields = {"site": root.site, "bucket": root.bucket, **path_fields(root.path, "place")}
            journal.append(
                {"kind": kind, **fields, **({"single": True} if single and kind == "origin" else {})}
            )
        for record in records:
            journal.append(record)
        journal.append({"kind": "receipt", "exit": 0, **(receipt or {})})


def moved(path: bytes, size: int = 1, **fields: Any) -> dict[str, Any]:
    return {"kind": "moved", **path_fields(path), "entry": "file", "size": size, "mtime_ns": 5, **fields}


def last(path: bytes = b"/data") -> LastTransfer | None:
    return find_last_transfer([OperationRoot("here", None, path)], read_operations())


def known(path: bytes = b"/data") -> KnownFiles:
    found = last(path)
    assert found is not None
    return read_known_files(found, read_operations())


def sizes(path: bytes = b"/data") -> dict[bytes, int]:
    return {name: each.size for name, each in known(path).files.items()}


def below(root: OperationRoot, name: bytes) -> OperationRoot:
    return OperationRoot(root.site, root.bucket, root.path + b"/" + name)


def test_the_latest_transfer_of_the_folder_or_of_the_closest_one_above_it_counts() -> None:
    assert last() is None
    write(1, HERE, THERE)
    write(2, THERE, HERE, operation="pull")
    write(3, OperationRoot("here", None, b"/"), OperationRoot("backup", None, b"/all"))
    write(4, HERE, HERE, operation="verify")
    write(5, HERE, OperationRoot("refused", None, b"/x"), receipt={"exit": 8})
    write(6, below(HERE, b"one"), below(THERE, b"other"), single=True)
    found = last()
    assert found is not None
    assert (found.pushed, found.there, found.below) == (False, THERE, b"")
    inner = last(b"/data/sub/folder")
    assert inner is not None
    assert (inner.there, inner.below) == (THERE, b"sub/folder")
    other = last(b"/other")
    assert other is not None
    assert other.there.site == "backup"
    assert find_last_transfer([OperationRoot("elsewhere", None, b"/data")], read_operations()) is None


def test_the_record_is_that_of_all_transfers_between_both_places() -> None:
    write(1, HERE, THERE, moved(b"a"), moved(b"b"), moved(b"gone"))
    write(2, THERE, HERE, moved(b"b", 2), {"kind": "deleted", **path_fields(b"gone")}, operation="pull")
    write(3, below(HERE, b"sub"), below(THERE, b"sub"), moved(b"c", 3))
    write(4, below(HERE, b"sub"), below(THERE, b"elsewhere"), moved(b"d", 4))
    write(5, HERE, OperationRoot("other", None, b"/far/data"), moved(b"e", 5))
    write(6, below(HERE, b"f"), THERE, moved(b"f", 6), single=True)
    write(7, below(HERE, b"g"), THERE, moved(b"renamed", 7), single=True)
    write(8, HERE, THERE, {"kind": "linked", **path_fields(b"h"), **path_fields(b"a", "same_as")})
    assert sizes() == {b"a": 1, b"b": 2, b"sub/c": 3, b"f": 6, b"h": 1}
    assert sizes(b"/data/other") == {}


def test_a_folder_below_the_root_of_the_transfer_has_its_part_of_the_record() -> None:
    write(1, HERE, THERE, moved(b"a"), moved(b"sub/b", 2), moved(b"subtle", 3))
    assert sizes(b"/data/sub") == {b"b": 2}


def test_an_empty_target_invalidates_what_was_there_before() -> None:
    write(1, HERE, THERE, moved(b"a"))
    write(2, HERE, THERE, {"kind": "empty"}, moved(b"b"))
    assert sizes() == {b"b": 1}


def test_types_digests_and_the_selection_are_read() -> None:
    selection = {"kind": "selection", "exclude": ["*.tmp"], "min_size": 10, "named": True, "links": "skip"}
    link = {**moved(b"link"), "entry": "link"}
    write(1, HERE, THERE, selection, moved(b"a", sha256="0" * 64), link, {**moved(b"dir"), "entry": "folder"})
    found = known()
    assert found.files == {
        b"a": KnownFile(Kind.FILE, 1, 5, "0" * 64),
        b"link": KnownFile(Kind.LINK, 1, 5),
    }
    assert (found.rules.exclude, found.rules.min_size, found.rules.links) == (("*.tmp",), 10, "skip")
    assert found.only_named
