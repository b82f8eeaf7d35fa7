"""Test that nothing is deleted without a request, and that deletions respect their limits and come last."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_filesystem import mounted, small_filesystem
from tests.support.transfers import Transfers, at_agents, counts, failed
from tests.support.trees import Folder, read_tree

there = at_agents("s3")
folder_there = at_agents()


def named(count: int, start: int = 0) -> dict[bytes, bytes]:
    return {b"folder/%04d" % number: b"%d" % number for number in range(start, start + count)}


def refused(there: Transfers, code: str, *words: str) -> Any:
    """Check that the push is refused with 8 and this code, and changes nothing at the target."""
    before = there.state_there()
    answer = there.push(*words, exit=8)
    assert answer.last["kind"] == "error"
    assert answer.last["code"] == code
    assert answer.last["hint"]
    assert there.state_there() == before
    return answer


def test_nothing_is_deleted_without_delete(there: Transfers) -> None:
    there.place.plant("data", {b"theirs": b"1", b"sub/theirs": b"2"})
    there.make({b"ours": b"3"})
    assert counts(there.push())["files_deleted"] == 0
    assert there.there() == {b"theirs": b"1", b"sub/theirs": b"2", b"ours": b"3"}


@pytest.mark.parametrize("inside", [False, True], ids=["folder", "files"])
def test_nothing_is_deleted_on_a_filesystem_that_is_mounted_in_the_target(
    local_there: Transfers, *, inside: bool
) -> None:
    """Whether the source lacks the whole folder or only its files, and also when the same filesystem is mounted again."""
    there = local_there
    there.make({b"a": b"1", b"mounted": Folder()} if inside else {b"a": b"1"})
    there.place.plant("data", {b"a": b"1", b"mounted": Folder()})
    point = there.root / "mounted"
    refusal = "another-filesystem", "--delete", "--max-delete", "100%"
    with small_filesystem(point, "size=1m"):
        (point / "precious").write_bytes(b"2")
        answer = refused(there, *refusal)
        assert "mounted" in answer.last["message"]
        there.push("--delete", "--max-delete", "100%", "--dry-run", exit=8)
        there.push("--delete", "--max-delete", "100%", "--exclude", "mounted")
        assert there.there() == {b"a": b"1", b"mounted/precious": b"2"}
    elsewhere = there.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_bytes(b"3")
    with mounted(elsewhere, point):
        refused(there, *refusal)


def test_delete_makes_the_target_equal_to_the_source(there: Transfers) -> None:
    there.make(named(20))
    there.push()
    there.place.plant("data", {b"extra": b"1", b"gone/with/folders": b"2", b"folder/extra": b"3"})
    for number in range(5):
        (there.source / f"folder/{number:04}").unlink()
    receipt = counts(there.push("--delete"))
    assert (receipt["files_deleted"], receipt["files_moved"], receipt["files_kept"]) == (8, 0, 15)
    assert there.there() == named(15, 5)
    if there.place.holds_folders:
        assert there.tree_there() == read_tree(there.source)


def test_empty_folders_are_deleted(folder_there: Transfers) -> None:
    there = folder_there
    there.place.plant("data", {b"empty/deep": Folder(), b"stays": Folder()})
    there.make({b"stays": Folder(), b"file": b"1"})
    assert counts(there.push("--delete"))["files_deleted"] == 0
    assert there.tree_there() == {b"stays": Folder(), b"file": b"1"}
    assert not (there.root / "empty").exists()


def test_a_limit_is_a_number_or_a_percentage(there: Transfers) -> None:
    there.place.plant("data", named(10))
    there.make({b"folder/0000": b"0"})
    answer = refused(there, "delete-limit", "--delete", "--max-delete", "8")
    assert "9 of 10" in answer.last["message"]
    refused(there, "delete-limit", "--delete", "--max-delete", "80%")
    refused(there, "delete-limit", "--delete", "--max-delete", "0")
    assert counts(there.push("--delete", "--max-delete", "90%"))["files_deleted"] == 9
    assert there.there().keys() == {b"folder/0000"}


def test_a_number_limits_the_deletions_exactly(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", named(10))
    there.make({b"folder/0000": b"0"})
    assert counts(there.push("--delete", "--max-delete", "9"))["files_deleted"] == 9


def test_the_default_limit_is_fifty_files(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", named(52))
    there.make({b"folder/0000": b"0"})
    refused(there, "delete-limit", "--delete")
    there.make({b"folder/0001": b"1"})
    assert counts(there.push("--delete"))["files_deleted"] == 50


def test_the_default_limit_of_a_large_tree_is_a_tenth(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", named(700))
    there.make(named(629))
    refused(there, "delete-limit", "--delete")
    there.make(named(630))
    assert counts(there.push("--delete"))["files_deleted"] == 70


@pytest.mark.parametrize("limit", ["many", "-1", "101%", "1.5", "%"])
def test_an_invalid_limit_is_a_usage_error(local_there: Transfers, limit: str) -> None:
    local_there.make({b"a": b"1"})
    answer = local_there.hibali(
        "push", local_there.source, "there:data", "--delete", f"--max-delete={limit}", exit=2
    )
    assert limit in answer.err.decode()


def test_an_empty_source_does_not_empty_the_target(there: Transfers) -> None:
    there.place.plant("data", {b"precious": b"1"})
    there.source.mkdir()
    refused(there, "empty-source", "--delete", "--max-delete", "100%")
    (there.source / "only/folders").mkdir(parents=True)
    refused(there, "empty-source", "--delete", "--max-delete", "100%")
    assert counts(there.push("--delete", "--allow-empty-source"))["files_deleted"] == 1
    assert there.there() == {}


def test_nothing_is_deleted_after_a_failure(there: Transfers) -> None:
    there.place.plant("data", {b"extra": b"1"})
    there.make({b"file": b"2"})
    os.mkfifo(there.source / "fifo")
    answer = there.push("--delete", exit=6)
    assert counts(answer)["files_deleted"] == 0
    assert there.there() == {b"extra": b"1", b"file": b"2"}
    assert counts(there.push("--delete", "--specials", "skip"))["files_deleted"] == 1


def test_excluded_files_are_not_deleted(there: Transfers) -> None:
    there.place.plant("data", {b"x.log": b"1", b"sub/y.log": b"2", b"z.txt": b"3", b"keep/me": b"4"})
    there.make({b"a.txt": b"5", b"b.log": b"6"})
    receipt = counts(there.push("--delete", "--exclude", "*.log", "--exclude", "/keep/"))
    assert receipt["files_deleted"] == 1
    assert there.there() == {b"x.log": b"1", b"sub/y.log": b"2", b"a.txt": b"5", b"keep/me": b"4"}


def test_a_folder_with_excluded_files_is_not_deleted(folder_there: Transfers) -> None:
    there = folder_there
    there.place.plant("data", {b"sub/y.log": b"2", b"sub/z.txt": b"3"})
    there.make({b"a.txt": b"5"})
    there.push("--delete", "--exclude", "*.log")
    assert there.tree_there() == {b"sub/y.log": b"2", b"a.txt": b"5"}


def test_a_pull_has_the_same_limits_of_deletions(there: Transfers, tmp_path: Path) -> None:
    there.place.plant("data", {b"a": b"1"})
    back = tmp_path / "back"
    there.pull(back)
    (back / "extra").write_bytes(b"2")
    assert counts(there.pull(back))["files_deleted"] == 0
    assert counts(there.pull(back, "--delete"))["files_deleted"] == 1
    assert read_tree(back) == {b"a": b"1"}


def test_delete_cannot_be_used_with_one_file(local_there: Transfers) -> None:
    local_there.make({b"a": b"1"})
    local_there.hibali("push", local_there.source / "a", "there:data/", "--delete", exit=2)
    assert local_there.there() == {}


# The same name for a file and a folder.


def test_a_folder_with_the_name_of_a_file_is_reported(folder_there: Transfers) -> None:
    there = folder_there
    there.place.plant("data", {b"name/below": b"theirs", b"name-x": b"1"})
    there.make({b"name": b"ours", b"other": b"2"})
    answer = there.push(exit=6)
    assert failed(answer).keys() == {b"name"}
    assert there.tree_there() == {b"name/below": b"theirs", b"name-x": b"1", b"other": b"2"}


def test_with_delete_the_folder_is_replaced_within_the_limit(folder_there: Transfers) -> None:
    there = folder_there
    there.place.plant("data", {**{b"name/%d" % number: b"1" for number in range(5)}, b"name-x": b"1"})
    there.make({b"name": b"ours"})
    refused(there, "delete-limit", "--delete", "--max-delete", "5")
    assert counts(there.push("--delete", "--max-delete", "6"))["files_deleted"] == 6
    assert there.tree_there() == {b"name": b"ours"}
    there.check_no_own_files()
    assert counts(there.push("--delete"))["files_moved"] == 0


def test_a_file_with_the_name_of_a_folder_is_reported(folder_there: Transfers) -> None:
    there = folder_there
    there.place.plant("data", {b"name": b"theirs"})
    there.make({b"name/below": b"ours", b"name/deep/er": b"ours", b"other": b"2"})
    answer = there.push(exit=6)
    assert {b"name/below", b"name/deep/er"} <= failed(answer).keys()
    assert there.tree_there() == {b"name": b"theirs", b"other": b"2"}


def test_with_delete_the_file_is_replaced_and_counted(folder_there: Transfers) -> None:
    there = folder_there
    there.place.plant("data", {b"name": b"theirs", b"name-x": b"1"})
    there.make({b"name/below": b"ours", b"name/deep/er": b"ours", b"name-x": b"1"})
    refused(there, "delete-limit", "--delete", "--max-delete", "0")
    assert counts(there.push("--delete"))["files_deleted"] == 1
    assert there.tree_there() == read_tree(there.source)
    there.check_no_own_files()


def test_a_folder_with_excluded_files_is_not_replaced(folder_there: Transfers) -> None:
    there = folder_there
    there.place.plant("data", {b"name/kept.log": b"1", b"name/other": b"2"})
    there.make({b"name": b"ours"})
    answer = there.push("--delete", "--exclude", "*.log", exit=6)
    assert b"name" in failed(answer)
    assert there.tree_there() == {b"name/kept.log": b"1", b"name/other": b"2"}
