"""Test that hard links at the source become hard links at the target (`--hard-links`)."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest

from tests.schemas import check_lines
from tests.support.transfers import Transfers, actions, at_agents, counts
from tests.support.trees import Folder, make_tree, walk_paths

folder_there = at_agents()

LARGE = os.urandom(5 << 20)
GROUPS = [{b"a/first", b"b", b"c/d"}, {b"large", b"z/large"}]


@pytest.fixture
def there(folder_there: Transfers) -> Transfers:
    """Return a site, with two files of several names and a file of which only one name is below the source."""
    there = folder_there
    there.make(
        {b"a/first": b"content", b"c/e": b"content", b"large": LARGE, b"z": Folder(), b"outside": b"1"}
    )
    (there.source / "b").hardlink_to(there.source / "a/first")
    (there.source / "c/d").hardlink_to(there.source / "a/first")
    (there.source / "z/large").hardlink_to(there.source / "large")
    (there.folder / "elsewhere").hardlink_to(there.source / "outside")
    return there


def groups(root: Path) -> list[set[bytes]]:
    """Return the groups of names that belong to one inode."""
    found = defaultdict(set)
    for name, status in walk_paths(root):
        if status.st_nlink > 1 and os.path.isfile(os.path.join(os.fsencode(root), name)):  # noqa: PTH113, PTH118 - bytes
            found[status.st_ino].add(name)
    return sorted((names for names in found.values() if len(names) > 1), key=min)


def test_hard_links_are_preserved(there: Transfers, tmp_path: Path) -> None:
    answer = there.push("--hard-links", "-v")
    check_lines(answer.out)
    receipt = answer.last
    assert (receipt["files_moved"], receipt["files_linked"], receipt["bytes_moved"]) == (
        4,
        3,
        len(LARGE) + 15,
    )
    assert receipt["proof_moved"] == "digest"
    assert groups(there.root) == GROUPS
    assert there.tree_there().items() >= {b"c/d": b"content", b"z/large": LARGE}.items()
    assert actions(there.push("--hard-links", "--dry-run")) == {}
    assert actions(there.push("--hard-links", "--checksum", "--dry-run")) == {}
    assert there.verify().last["files_failed"] == 0
    there.pull(tmp_path / "back", "--hard-links")
    assert groups(tmp_path / "back") == GROUPS
    there.check_no_own_files()


def test_without_the_option_each_name_is_a_separate_file(there: Transfers) -> None:
    assert there.push().last["files_linked"] == 0
    assert groups(there.root) == []
    # with the option, existing files are linked without sending them again
    receipt = there.push("--hard-links").last
    assert (receipt["files_moved"], receipt["files_linked"], receipt["bytes_sent"]) == (0, 3, 0)
    assert groups(there.root) == GROUPS
    there.check_no_own_files()


def test_a_changed_file_changes_under_all_names(there: Transfers) -> None:
    there.push("--hard-links")
    (there.source / "b").write_bytes(b"other content")
    assert actions(there.push("--hard-links", "--dry-run")) == {
        b"a/first": "replace",
        b"b": "link",
        b"c/d": "link",
    }
    there.push("--hard-links")
    assert groups(there.root) == GROUPS
    assert (there.root / "c/d").read_bytes() == b"other content"
    # a name that no longer belongs to its file
    (there.source / "c/d").unlink()
    (there.source / "c/d").write_bytes(b"its own now")
    there.push("--hard-links")
    assert groups(there.root) == [{b"a/first", b"b"}, GROUPS[1]]


def test_an_interrupted_transfer_is_completed(there: Transfers) -> None:
    there.push("--hard-links", "--exclude", "b", "--exclude", "z")
    assert groups(there.root) == [{b"a/first", b"c/d"}]
    (there.root / "c/d").unlink()
    receipt = there.push("--hard-links").last
    assert (receipt["files_moved"], receipt["files_linked"]) == (0, 3)
    assert groups(there.root) == GROUPS


def test_a_folder_is_replaced_by_a_hard_link(there: Transfers) -> None:
    make_tree(there.root, {b"b/in": b"1", b"c": b"in the way of a folder"})
    there.push("--hard-links", exit=6)
    there.push("--hard-links", "--delete", "--max-delete", "100%")
    assert groups(there.root) == GROUPS
    there.check_no_own_files()


def test_a_saved_plan_creates_the_same_hard_links(there: Transfers) -> None:
    path = there.folder / "the.plan"
    there.hibali("plan", there.source, "there:data", "-o", path, "--hard-links", exit=0)
    check_lines(path.read_bytes())
    (there.source / "c/d").unlink()
    (there.source / "c/d").write_bytes(b"content")
    assert there.hibali("apply", path, "--json", exit=8).last["code"] == "drift"
    there.hibali("plan", there.source, "there:data", "-o", path, "--hard-links", exit=0)
    assert there.hibali("apply", path, "--json", exit=0).last["files_linked"] == 2
    assert groups(there.root) == [{b"a/first", b"b"}, GROUPS[1]]
    again = counts(there.hibali("apply", path, "--json", exit=0))
    assert (again["files_moved"], again["files_failed"]) == (0, 0)


def test_files_replaced_by_a_hard_link_are_backed_up(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"new"})
    (there.source / "b").hardlink_to(there.source / "a")
    make_tree(there.root, {b"b": b"old"})
    there.push("--hard-links", "--backup-dir", "there:kept")
    assert (there.root.parent / "kept/b").read_bytes() == b"old"
    assert groups(there.root) == [{b"a", b"b"}]


def test_a_bucket_is_refused(bucket_there: Transfers) -> None:
    bucket_there.make({b"a": b"1"})
    refused = bucket_there.push("--hard-links", exit=8).last
    assert refused["code"] == "cannot-keep-hard-links"
    assert "--hard-links" in refused["hint"]
