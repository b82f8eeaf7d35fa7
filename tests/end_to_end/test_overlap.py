"""Test that overlapping sources and targets are refused, under any name and through any store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.end_to_end.conftest import MakeTransfers
from tests.support.backends import BucketBackend, FolderBackend, add_site, make_backend
from tests.support.small_filesystem import mounted
from tests.support.transfers import Transfers
from tests.support.trees import make_tree, read_tree

TREE = {b"a/one": b"1", b"a/sub/two": b"22", b"b/three": b"333", b"four": b"4"}


def refused(hibali: Any, *words: Any, code: str = "overlap") -> Any:
    answer = hibali(*words, "--json", exit=8)
    assert answer.last["code"] == code, str(answer)
    assert answer.last["hint"]
    return answer


def refused_everywhere(
    there: Transfers, pairs: list[tuple[Any, Any]], unchanged: Callable[[], object]
) -> None:
    """Check `sync`, with and without --delete and as a dry run, and `plan`."""
    before = unchanged()
    for source, target in pairs:
        refused(there.hibali, "sync", "--delete", "--max-delete", "100%", source, target)
    refused(there.hibali, "sync", *pairs[0])
    refused(there.hibali, "sync", "-n", *pairs[0])
    refused(there.hibali, "plan", "--delete", *pairs[0])
    assert unchanged() == before


def test_folders_of_this_machine_that_overlap_are_refused(local_there: Transfers) -> None:
    there = local_there
    ov = make_tree(there.folder / "ov", TREE)
    (there.folder / "link").symlink_to(ov)
    (ov / "b/up").symlink_to(ov / "a")
    refused_everywhere(
        there,
        [
            (f"{ov}/a", ov),
            (ov, f"{ov}/b"),
            (ov, f"{ov}/not/there/yet"),
            (ov, ov),
            (there.folder / "link", ov),
            (f"{there.folder}/link/a", ov),
            (ov, f"{there.folder}/link/new"),
            (ov, f"{ov}/b/up"),
        ],
        lambda: read_tree(ov),
    )
    assert refused(there.hibali, "sync", f"{ov}/a", ov).last["message"] == "the source is inside the target"
    assert refused(there.hibali, "sync", ov, f"{ov}/a").last["message"] == "the target is inside the source"
    # names with the same beginning, and sibling folders
    there.hibali("sync", f"{ov}/a", f"{ov}/ab", exit=0)
    there.hibali("sync", "--delete", f"{ov}/a", there.folder / "ov-copy", exit=0)


def test_a_file_is_not_transferred_onto_itself(local_there: Transfers) -> None:
    there = local_there
    ov = make_tree(there.folder / "ov", TREE)
    (there.folder / "link").symlink_to(ov)
    (there.folder / "alias").symlink_to(ov / "four")
    for source, target in (
        (ov / "four", f"{ov}/"),
        (ov / "four", f"{there.folder}/link/four"),
        (there.folder / "alias", ov / "four"),
    ):
        refused(there.hibali, "sync", source, target)
    assert set(TREE) <= set(read_tree(ov))
    there.hibali("sync", ov / "four", ov / "five", exit=0)
    there.hibali("sync", ov / "four", f"{ov}/a/", exit=0)
    there.hibali("sync", ov / "a/one", f"{ov}/", exit=0)
    assert (ov / "five").read_bytes() == (ov / "a/four").read_bytes() == b"4"
    # a second name of the file in another folder is no overlap
    (there.folder / "other").mkdir()
    os.link(ov / "four", there.folder / "other/four")
    there.hibali("sync", ov / "four", f"{there.folder}/other/", exit=0)


def test_bind_mounts_are_recognized(local_there: Transfers) -> None:
    there = local_there
    ov = make_tree(there.folder / "ov", TREE)
    elsewhere = there.folder / "elsewhere"
    with mounted(ov / "a", elsewhere):
        refused_everywhere(
            there,
            [(elsewhere, ov), (ov, elsewhere), (f"{ov}/a", elsewhere / "new")],
            lambda: read_tree(ov),
        )
        there.hibali("sync", f"{ov}/b", elsewhere / "new", exit=0)
    target = make_tree(there.folder / "target", {b"m/x": b""})
    with mounted(ov, target / "m"):
        # the source itself would be deleted at the target
        refused(there.hibali, "sync", "--delete", ov, target)
        refused(there.hibali, "sync", "--delete", f"{ov}/b", target)
    with mounted(ov, target / "m"), mounted(ov, there.folder / "source/n"):
        refused(there.hibali, "sync", "--delete", there.folder / "source", target)
    assert (ov / "a/one").read_bytes() == b"1"


def test_a_folder_mounted_in_both_is_not_moved(local_there: Transfers) -> None:
    there = local_there
    source = make_tree(there.source, {b"sub/x": b"1", b"y": b"2"})
    with mounted(source / "sub", there.root / "sub"):
        there.hibali("push", "-n", source, "there:data", exit=0)
        refused(there.hibali, "push", "--move", source, "there:data")
    assert set(read_tree(source)) == {b"sub/x", b"y"}


def test_a_saved_plan_and_a_backup_are_checked(local_there: Transfers) -> None:
    there = local_there
    ov, other = make_tree(there.folder / "ov", TREE), there.folder / "other"
    plan = there.folder / "plan"
    there.hibali("plan", "--delete", ov, other, "-o", plan, exit=0)
    other.symlink_to(ov / "a")
    answer = there.hibali("apply", plan, "--json", exit=8)
    assert answer.last["code"] in {"overlap", "plan-drift"}, str(answer)
    assert set(TREE) == set(read_tree(ov))
    other.unlink()
    make_tree(other, {b"four": b"old"})
    (there.folder / "way").symlink_to(ov)
    for backup in (ov / "kept", there.folder / "way/kept", there.folder / "way"):
        refused(there.hibali, "sync", "--backup-dir", backup, ov, other, code="backup-overlaps")
    with mounted(other, there.folder / "again"):
        refused(
            there.hibali,
            "sync",
            "--backup-dir",
            there.folder / "again/kept",
            ov,
            other,
            code="backup-overlaps",
        )
    assert (other / "four").read_bytes() == b"old"
    there.hibali("sync", "--backup-dir", there.folder / "kept", ov, other, exit=0)
    assert (there.folder / "kept/four").read_bytes() == b"old"


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["ssh", pytest.param("sftp", marks=pytest.mark.heavy)])
def test_sites_with_the_same_folder_are_recognized(
    transfers_to: MakeTransfers, word: str, request: Any
) -> None:
    there = transfers_to(word)
    place = there.place
    assert isinstance(place, FolderBackend)
    make_tree(there.root, TREE)
    config = there.hibali.home.config
    for name, kind in (("local", "local"), ("ssh", "ssh"), ("sftp", "sftp")):
        other = make_backend(kind, there.folder, request.getfixturevalue)
        assert isinstance(other, FolderBackend)
        other.root = place.root
        add_site(config, name, other)
    (place.root / "link").symlink_to(there.root)
    before = read_tree(there.root)
    for source, target in (
        ("there:data/a", "there:data"),
        (there.root, "there:data"),
        ("there:data/a", there.root),
        ("local:link/a", "there:data"),
        ("there:data", "ssh:data"),
        ("sftp:data/a", "there:link"),
        ("there:link", "sftp:data/new/one"),
        ("there:data/four", "sftp:link/four"),
        ("there:data/four", "local:link/"),
    ):
        refused(there.hibali, "sync", source, target)
    with mounted(there.root, place.root / "bound"):
        refused(there.hibali, "sync", "--delete", "there:bound/a", "there:data")
        refused(there.hibali, "sync", "--delete", "there:bound", "sftp:data/b")
        refused(there.hibali, "sync", "--delete", "there:bound", there.root / "b")
    if word == "ssh":
        refused(there.hibali, "sync", "--direct", "there:data", "ssh:data/b")
    assert read_tree(there.root) == before
    there.hibali("sync", "there:data/a", "sftp:data/c", exit=0)
    there.hibali("sync", "there:data/four", "local:data/five", exit=0)


def test_prefixes_of_one_bucket_are_compared(transfers_to: MakeTransfers) -> None:
    there = transfers_to("s3")
    place = there.place
    assert isinstance(place, BucketBackend)
    place.plant("data", TREE)
    table = place.table().replace("{name}", "again")
    config = there.hibali.home.config
    other = table.replace("127.0.0.1", "localhost")
    assert other != table
    config.write_text(f'{config.read_text()}[sites.again]\n{other}prefix = "data"\n')
    before = place.versions("")
    for source, target in (
        ("there:data/a", "there:data"),
        ("there:data", "there:"),
        ("again:a", "there:data"),
        ("there:data", "again:"),
        ("again:four", "there:data/four"),
        ("again:four", "there:data/"),
    ):
        refused(there.hibali, "sync", source, target)
    assert place.versions("") == before
    there.hibali("sync", "again:a", "there:data/a2", exit=0)
    there.hibali("sync", "there:data/four", "again:five", exit=0)
