"""Test that a single file gets exactly the given name, or goes into a folder given with a slash."""

from __future__ import annotations

from pathlib import Path

from tests.support.transfers import Transfers, counts
from tests.support.trees import File, Folder, read_tree

MTIME = 1_111_111_111_000_000_001


def test_a_file_gets_exactly_the_given_name(there: Transfers) -> None:
    there.make({b"scan.nii": File(b"content", mtime_ns=MTIME), b"other": b"not this one"})
    receipt = there.hibali("push", there.source / "scan.nii", "there:data/sub/renamed", "--json", exit=0).last
    assert (receipt["files"], receipt["files_moved"], receipt["bytes_moved"]) == (1, 1, 7)
    assert there.there() == {b"sub/renamed": b"content"}
    again = there.hibali("push", there.source / "scan.nii", "there:data/sub/renamed", "--json", exit=0).last
    assert (again["files_moved"], again["bytes_sent"], again["files_kept"]) == (0, 0, 1)


def test_a_slash_puts_the_file_into_the_folder(there: Transfers) -> None:
    there.make({b"scan.nii": b"content"})
    there.hibali("push", there.source / "scan.nii", "there:data/", exit=0)
    there.hibali("push", there.source / "scan.nii", "there:data/sub/", exit=0)
    assert there.there() == {b"scan.nii": b"content", b"sub/scan.nii": b"content"}


def test_an_existing_folder_without_a_slash_is_a_usage_error(there: Transfers) -> None:
    there.place.plant("data", {b"sub/file": b"1"})
    there.make({b"scan.nii": b"content"})
    before = there.state_there()
    answer = there.hibali("push", there.source / "scan.nii", "there:data/sub", "--json", exit=2)
    assert "there:data/sub/" in answer.last["hint"]
    assert there.state_there() == before


def test_the_contents_of_a_folder_are_sent_with_or_without_a_slash(there: Transfers) -> None:
    there.make({b"a": b"1", b"sub/b": b"2"})
    there.hibali("push", f"{there.source}/", "there:data/", exit=0)
    assert there.there() == {b"a": b"1", b"sub/b": b"2"}
    for source, target in ((f"{there.source}/", "there:data"), (f"{there.source}", "there:data/")):
        receipt = there.hibali("push", source, target, "--json", exit=0).last
        assert receipt["files_moved"] == 0


def test_a_file_as_the_target_of_a_folder_is_a_usage_error(folder_there: Transfers) -> None:
    there = folder_there
    there.place.plant("", {b"data": b"a file"})
    there.make({b"a": b"1"})
    there.hibali("push", there.source, "there:data", exit=2)
    assert there.place.read("", b"data") == b"a file"


def test_a_file_with_a_trailing_slash_is_a_usage_error(local_there: Transfers) -> None:
    local_there.make({b"a": b"1"})
    local_there.hibali("push", f"{local_there.source}/a/", "there:data/", exit=2)
    assert local_there.there() == {}


def test_one_file_is_pulled(there: Transfers, tmp_path: Path) -> None:
    there.place.plant("data", {b"sub/file": b"1", b"sub/other": b"2"})
    there.hibali("pull", "there:data/sub/file", tmp_path / "back/renamed", exit=0)
    there.hibali("pull", "there:data/sub/file", f"{tmp_path}/back/", exit=0)
    assert read_tree(tmp_path / "back") == {b"renamed": b"1", b"file": b"1"}
    (tmp_path / "back/folder").mkdir()
    there.hibali("pull", "there:data/sub/file", tmp_path / "back/folder", exit=2)


def test_one_file_replaces_only_one_file(there: Transfers) -> None:
    there.place.plant("data", {b"file": b"old", b"neighbour": b"1"})
    there.make({b"file": b"newer"})
    receipt = there.hibali("push", there.source / "file", "there:data/file", "--json", exit=0)
    assert counts(receipt)["files_moved"] == 1
    assert there.there() == {b"file": b"newer", b"neighbour": b"1"}


def test_a_symlink_as_the_source_is_followed(folder_there: Transfers) -> None:
    """Check that a link given on the command line is followed, as the source and as the target; links below it never are."""
    there = folder_there
    there.make({b"file": b"1"})
    (there.folder / "to-source").symlink_to(there.source)
    there.place.plant("elsewhere", {b"kept": Folder()})
    there.root.symlink_to(there.place.at("elsewhere"))  # type: ignore[attr-defined]
    there.hibali("push", there.folder / "to-source", "there:data", exit=0)
    assert there.place.files("elsewhere") == {b"file": b"1"}
    assert there.root.is_symlink()
