"""Test selecting files by list, age and size; other files are not changed."""

from __future__ import annotations

import time

import pytest

from tests.support.transfers import Transfers, actions, counts, failed
from tests.support.trees import File

SECOND = 1_000_000_000
OLD, NEW = 1_600_000_000 * SECOND, time.time_ns() - 3600 * SECOND
TREE = {
    b"small": File(b"1", mtime_ns=OLD),
    b"large": File(b"1" * 5000, mtime_ns=OLD),
    b"sub/new": File(b"1" * 20, mtime_ns=NEW),
    b"sub/old": File(b"1" * 20, mtime_ns=OLD),
    b"sub-x": File(b"1" * 20, mtime_ns=OLD),
}


def test_a_list_names_files_and_folders(there: Transfers) -> None:
    there.make(TREE)
    listed = there.folder / "list"
    listed.write_bytes(b"./small\nsub/\n")
    receipt = counts(there.push("--files-from", listed))
    assert (receipt["files"], receipt["files_moved"]) == (3, 3)
    assert there.committed_files().keys() == {b"small", b"sub/new", b"sub/old"}
    answer = there.hibali(
        "push", there.source, "there:data", "--json", "--files-from", "-", "-0", stdin=b"sub-x\0", exit=0
    )
    assert answer.last["files_moved"] == 1


def test_a_missing_name_exits_with_6_and_the_others_are_sent(there: Transfers) -> None:
    there.place.plant("data", {b"sub/extra": b"1"})
    there.make(TREE)
    listed = there.folder / "list"
    listed.write_bytes(b"small\nno such\nsub\n")
    answer = there.push("--files-from", listed, "--delete", exit=6)
    assert failed(answer)[b"no such"] == "missing"
    assert there.committed_files().keys() == {b"small", b"sub/new", b"sub/old", b"sub/extra"}
    listed.write_bytes(b"small\nsub\n")
    assert counts(there.push("--files-from", listed, "--delete"))["files_deleted"] == 1


def test_a_missing_list_exits_with_3_and_an_unsafe_one_with_2(local_there: Transfers) -> None:
    local_there.make(TREE)
    listed = local_there.folder / "list"
    local_there.push("--files-from", listed, exit=3)
    listed.write_bytes(b"a\n../b\n")
    local_there.push("--files-from", listed, exit=2)
    local_there.hibali("push", local_there.source, "there:data", "-0", exit=2)


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        (("--newer", "2d"), {b"sub/new"}),
        (("--newer", "2020-10-01"), {b"sub/new"}),
        (("--newer", "2020-09-13T12:26:40Z"), {b"small", b"large", b"sub/new", b"sub/old", b"sub-x"}),
        (("--min-size", "1K"), {b"large"}),
        (("--max-size", "19"), {b"small"}),
        (("--min-size", "2", "--max-size", "4KiB"), {b"sub/new", b"sub/old", b"sub-x"}),
    ],
)
def test_age_and_size_select_files(local_there: Transfers, words: tuple[str, ...], taken: set[bytes]) -> None:
    local_there.make(TREE)
    assert actions(local_there.push("-n", *words)).keys() == taken
    local_there.push(*words)
    assert local_there.committed_files().keys() == taken


def test_unselected_files_are_not_deleted(there: Transfers) -> None:
    there.place.plant("data", {b"tiny": b"1", b"huge": b"1" * 5000, b"sub/huge": b"1" * 5000})
    there.make({b"big": b"1" * 3000})
    receipt = counts(there.push("--delete", "--min-size", "4000", "--allow-empty-source"))
    assert (receipt["files_moved"], receipt["files_deleted"]) == (0, 2)
    assert there.committed_files().keys() == {b"tiny"}


@pytest.mark.parametrize("words", [("--newer", "yesterday"), ("--min-size", "big"), ("--max-size", "-1")])
def test_invalid_ages_and_sizes_are_usage_errors(local_there: Transfers, words: tuple[str, ...]) -> None:
    local_there.make(TREE)
    local_there.push(*words, exit=2)
