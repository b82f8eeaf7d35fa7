"""Test that replaced and deleted files are backed up at the same site under the same names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_filesystem import small_filesystem
from tests.support.transfers import Transfers, at_agents, counts, failed
from tests.support.trees import Link

there = at_agents("s3")
folder_there = at_agents()

BEFORE = {b"same": b"1", b"changed": b"old", b"sub/gone": b"deleted", b"way": b"a file", b"dir/in": b"below"}


def prepare(there: Transfers) -> None:
    there.place.plant("data", BEFORE)
    there.pull(there.source)
    (there.source / "sub/gone").unlink()
    (there.source / "way").unlink()
    (there.source / "dir/in").unlink()
    (there.source / "dir").rmdir()
    there.make({b"changed": b"newer", b"new": b"2", b"way/below": b"now a folder", b"dir": b"now a file"})


def test_replaced_and_deleted_files_are_backed_up(there: Transfers) -> None:
    prepare(there)
    before = there.whole_state()
    there.push("-n", "--delete", "--backup-dir", "there:old/monday")
    assert there.whole_state() == before
    receipt = counts(there.push("--delete", "--backup-dir", "there:old/monday"))
    assert (receipt["files_moved"], receipt["files_failed"]) == (4, 0)
    assert there.committed_files() == {
        b"same": b"1",
        b"changed": b"newer",
        b"new": b"2",
        b"way/below": b"now a folder",
        b"dir": b"now a file",
    }
    kept = {name: content for name, content in BEFORE.items() if name != b"same"}
    assert there.place.files("old/monday") == kept
    there.check_no_own_files()


def test_files_in_the_backup_are_never_replaced(there: Transfers) -> None:
    prepare(there)
    there.place.plant("old", {b"changed": b"of last week"})
    answer = there.push("--delete", "--backup-dir", "there:old", exit=6)
    assert failed(answer)[b"changed"] == "in-the-way"
    # in a bucket an object can exist beside objects whose names it begins
    beside = {b"way/below": b"now a folder"} if there.place.word == "s3" else {}
    assert there.committed_files() == BEFORE | {b"new": b"2"} | beside
    assert there.place.files("old")[b"changed"] == b"of last week"


def test_a_plan_is_applied_with_a_backup(there: Transfers) -> None:
    prepare(there)
    path = there.folder / "the.plan"
    there.hibali("plan", there.source, "there:data", "-o", path, "--delete", exit=0)
    there.hibali("apply", path, "--backup-dir", "there:old", exit=0)
    assert there.committed_files()[b"changed"] == b"newer"
    assert there.place.files("old") == {name: content for name, content in BEFORE.items() if name != b"same"}


def test_links_are_backed_up_as_links(folder_there: Transfers) -> None:
    there = folder_there
    there.place.plant("data", {b"link": Link(b"before")})
    there.make({b"link": Link(b"after")})
    there.push("--backup-dir", "there:old")
    assert there.place.tree("old") == {b"link": Link(b"before")}  # type: ignore[attr-defined]
    assert there.tree_there() == {b"link": Link(b"after")}


@pytest.mark.parametrize("place", ["there:data", "there:data/old", "there:.", "elsewhere"])
def test_a_backup_must_be_at_the_same_site_and_apart_from_the_target(
    there: Transfers, place: str, tmp_path: Path
) -> None:
    prepare(there)
    before = there.whole_state()
    if place == "there:." and there.place.word == "s3":
        place = "there:"
    there.push("--backup-dir", place if place != "elsewhere" else tmp_path / "elsewhere", exit=2)
    assert there.whole_state() == before


def test_a_backup_by_another_name_or_on_another_filesystem_is_refused(folder_there: Transfers) -> None:
    there = folder_there
    prepare(there)
    (there.root.parent / "alias").symlink_to(there.root)
    there.push("--delete", "--backup-dir", "there:alias/old", exit=8)
    with small_filesystem(there.root.parent / "other", "size=1m"):
        there.push("--delete", "--backup-dir", "there:other", exit=8)
    assert there.committed_files() == BEFORE
