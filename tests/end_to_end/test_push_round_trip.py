"""Test pushing and pulling thousands of files: all arrive, unchanged, and none twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.transfers import Transfers, contents, counts, failed
from tests.support.trees import File, Folder, Link, flip_byte, make_tree, many_files, read_tree, walk_paths

MTIME = 1_234_567_890_123_456_789


def test_two_thousand_files_are_pushed_and_pulled(there: Transfers, tmp_path: Path) -> None:
    tree = many_files(2000, 3000)
    total = sum(map(len, tree.values()))
    there.make(tree)
    first = there.push().last
    assert first["kind"] == "receipt"
    assert first["operation"] == "push"
    assert (first["files"], first["bytes"]) == (2000, total)
    assert (first["files_moved"], first["bytes_moved"]) == (2000, total)
    assert (first["files_kept"], first["files_deleted"], first["files_failed"]) == (0, 0, 0)
    assert first["proof_moved"] == "digest"
    assert there.there() == tree
    there.check_no_own_files()
    before = there.state_there()
    second = counts(there.push())
    assert second == {**dict.fromkeys(second, 0), "files": 2000, "bytes": total, "files_kept": 2000}
    assert there.state_there() == before
    back = counts(there.pull(tmp_path / "back"))
    assert (back["files_moved"], back["bytes_moved"]) == (2000, total)
    assert read_tree(tmp_path / "back") == tree
    again = counts(there.pull(tmp_path / "back"))
    assert (again["files_moved"], again["bytes_moved"], again["bytes_sent"]) == (0, 0, 0)


def test_bytes_on_the_network_are_counted(there: Transfers) -> None:
    there.make({b"a": b"x" * 1000, b"b/c": b"y" * 2000})
    sent = counts(there.push())["bytes_sent"]
    assert sent == (0 if there.place.word == "local" else 3000)


def test_a_large_file_is_sent_in_segments(there: Transfers, tmp_path: Path) -> None:
    block = os.urandom(1 << 20)
    content = b"".join(bytes([number]) + block for number in range(20)) + b"end"
    there.make({b"large/file": content, b"small": b"1"})
    receipt = there.push().last
    assert (receipt["files_moved"], receipt["proof_moved"]) == (2, "digest")
    assert there.there() == {b"large/file": content, b"small": b"1"}
    assert counts(there.push())["files_moved"] == 0
    there.pull(tmp_path / "back")
    assert (tmp_path / "back/large/file").read_bytes() == content


def test_times_are_preserved_to_the_nanosecond(there: Transfers, tmp_path: Path) -> None:
    there.make(
        {
            b"file": File(b"1", mtime_ns=MTIME),
            b"old": File(b"2", mtime_ns=1),
            b"empty": File(b"", mtime_ns=MTIME),
        }
    )
    there.push()
    there.pull(tmp_path / "back")
    times = {name: status.st_mtime_ns for name, status in walk_paths(tmp_path / "back")}
    assert times == {b"file": MTIME, b"old": 1, b"empty": MTIME}


def test_only_the_execute_bit_is_transferred(folder_there: Transfers, tmp_path: Path) -> None:
    there = folder_there
    there.make({b"program": File(b"#!/bin/sh\n", executable=True), b"data": b"1"})
    (there.source / "program").chmod(0o6755)
    (there.source / "data").chmod(0o600)
    old = os.umask(0o022)
    try:
        there.push()
        there.pull(tmp_path / "back")
    finally:
        os.umask(old)
    for root in (there.root, tmp_path / "back"):
        modes = {name: status.st_mode & 0o7777 for name, status in walk_paths(root)}
        assert modes == {b"program": 0o755, b"data": 0o644}
    (there.source / "data").chmod(0o755)
    assert counts(there.push())["files_moved"] == 1
    assert (there.root / "data").stat().st_mode & 0o100


def test_symlinks_arrive_as_symlinks_and_are_never_followed(folder_there: Transfers, tmp_path: Path) -> None:
    there = folder_there
    outside = make_tree(tmp_path / "outside", {b"secret": b"do not read"})
    links = {
        b"to-file": Link(b"file"),
        b"dangling": Link(b"nowhere"),
        b"to-folder": Link(os.fsencode(outside)),
        b"sub/up": Link(b"../file"),
        b"odd": Link(b"a\nb \xff"),
    }
    there.make({b"file": b"1", **links})
    there.push()
    assert there.tree_there() == {b"file": b"1", **links}
    there.pull(tmp_path / "back")
    assert read_tree(tmp_path / "back") == {b"file": b"1", **links}
    assert counts(there.push())["files_moved"] == 0
    (there.source / "to-file").unlink()
    (there.source / "to-file").symlink_to("elsewhere")
    assert counts(there.push())["files_moved"] == 1
    assert there.tree_there()[b"to-file"] == Link(b"elsewhere")


def test_a_symlink_at_the_target_is_not_written_through(folder_there: Transfers, tmp_path: Path) -> None:
    there = folder_there
    outside = make_tree(tmp_path / "outside", {b"precious": b"mine"})
    make_tree(
        there.root, {b"folder": Link(os.fsencode(outside)), b"file": Link(os.fsencode(outside / "precious"))}
    )
    there.make(
        {b"folder/precious": b"overwritten", b"folder/new": b"1", b"file": b"overwritten", b"other": b"1"}
    )
    answer = there.push(exit=6)
    assert read_tree(outside) == {b"precious": b"mine"}
    assert {b"folder/precious", b"folder/new"} <= failed(answer).keys()
    assert (there.root / "other").read_bytes() == b"1"
    there.push("--delete", "--max-delete", "100%")
    assert read_tree(outside) == {b"precious": b"mine"}
    assert there.tree_there() == read_tree(there.source)


def test_links_can_be_skipped(there: Transfers) -> None:
    there.make({b"file": b"1", b"link": Link(b"file")})
    assert counts(there.push("--links", "skip"))["files_moved"] == 1
    assert there.there() == {b"file": b"1"}


def test_links_that_a_store_cannot_store_are_reported(bucket_there: Transfers) -> None:
    there = bucket_there
    there.make({b"file": b"1", b"link": Link(b"file")})
    answer = there.push(exit=6)
    assert failed(answer).keys() == {b"link"}
    assert there.there() == {b"file": b"1"}


def test_special_files_are_reported_and_never_opened_or_created(there: Transfers) -> None:
    there.make({b"file": b"1"})
    os.mkfifo(there.source / "fifo")
    answer = there.push(exit=6)
    assert failed(answer).keys() == {b"fifo"}
    assert there.there() == {b"file": b"1"}
    assert there.place.names("data") - {b".hibali/manifest.jsonl"} == {b"file"}
    there.push("--specials", "skip")


def test_empty_folders_and_empty_files_are_kept(there: Transfers, tmp_path: Path) -> None:
    tree = {b"empty": Folder(), b"deep/er/still": Folder(), b"nothing": b"", b"x/y": b""}
    there.make(tree)
    there.push()
    there.pull(tmp_path / "back")
    expected = tree if there.place.holds_folders else contents(tree)
    assert read_tree(tmp_path / "back") == expected
    assert counts(there.push())["files_moved"] == 0


def test_an_empty_source_is_nothing_to_do(there: Transfers) -> None:
    there.source.mkdir()
    assert counts(there.push())["files"] == 0
    assert there.there() == {}


def test_checksum_finds_changes_that_size_and_time_do_not_show(there: Transfers) -> None:
    there.make({b"same": b"12345", b"other": File(b"67890", mtime_ns=MTIME)})
    there.push()
    flip_byte(there.source / "other")
    assert counts(there.push())["files_moved"] == 0
    assert counts(there.push("--checksum"))["files_moved"] == 1
    assert there.there()[b"other"] == (there.source / "other").read_bytes()
    # with --checksum another time alone transfers nothing
    os.utime(there.source / "same", ns=(MTIME, MTIME))
    assert counts(there.push("--checksum"))["files_moved"] == 0


def test_changed_files_are_replaced(there: Transfers) -> None:
    there.make({b"longer": b"1", b"touched": b"22", b"kept": b"3"})
    there.push()
    (there.source / "longer").write_bytes(b"111")
    (there.source / "touched").write_bytes(b"33")
    os.utime(there.source / "touched", ns=(MTIME, MTIME))
    receipt = counts(there.push())
    assert (receipt["files_moved"], receipt["files_kept"], receipt["bytes_moved"]) == (2, 1, 5)
    assert there.there() == {b"longer": b"111", b"touched": b"33", b"kept": b"3"}


def test_a_file_with_the_time_of_the_epoch_is_transferred_once(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"old": File(b"as reproducible archives have it", mtime_ns=0)})
    assert counts(there.push())["files_moved"] == 1
    assert counts(there.push())["files_moved"] == 0


@pytest.mark.heavy
def test_a_bandwidth_limit_is_observed_and_can_be_interrupted(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"%d" % number: bytes(4_000_000) for number in range(4)})
    slow = there.push("--bwlimit", "4000K")
    assert slow.last["seconds"] > 2.5  # the first pack is sent at once
    assert there.push("--checksum", "--bwlimit", "1").last["files_moved"] == 0
    there.make({b"more": bytes(4_000_000), b"much more": bytes(4_000_000)})
    assert there.push("--bwlimit", "1K", "--max-time", "2s", exit=5).last["code"] == "max-time"


def test_holes_are_preserved_and_dense_files_stay_dense(folder_there: Transfers, tmp_path: Path) -> None:
    there = folder_there
    there.make({b"sparse": b"start", b"large": b"start", b"dense": bytes(1 << 20)})
    sizes = {"sparse": 3 << 20, "large": 40 << 20}
    for name, size in sizes.items():
        with (there.source / name).open("r+b") as stream:
            stream.seek(size // 2)
            stream.write(b"middle")
            stream.truncate(size)
    os.sync()
    assert counts(there.push())["bytes_moved"] == sum(sizes.values()) + (1 << 20)
    there.pull(tmp_path / "back")
    os.sync()
    for root in (there.root, tmp_path / "back"):
        for name in sizes:
            assert (root / name).read_bytes() == (there.source / name).read_bytes()
            assert (root / name).stat().st_blocks * 512 < 256 * 1024
        assert (root / "dense").stat().st_blocks * 512 >= 1 << 20
