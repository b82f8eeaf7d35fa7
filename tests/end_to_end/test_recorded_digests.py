"""Test `--checksum --recorded`: unchanged files are not read again and count as `recorded`."""

from __future__ import annotations

import os

import pytest

from tests.end_to_end.conftest import MakeTransfers
from tests.support.transfers import Transfers, counts

TREE = {b"a": b"11", b"b": b"22", b"sub/c": b"33"}
MANY = {
    **TREE,
    **{b"many/%04d" % number: b"%d" % number for number in range(1500)},
}  # more than one batch of lookups
WORDS = ("--checksum", "--recorded")


def swap_unseen(there: Transfers, name: str, content: bytes) -> None:
    """Replace the content by other bytes of the same size, and restore all times except ctime."""
    path = there.source / name
    status = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("word", ["local", "s3"])
def test_files_with_recorded_digests_are_not_hashed_again(transfers_to: MakeTransfers, word: str) -> None:
    there = transfers_to(word)
    there.make(TREE)
    there.push()
    first = there.push(*WORDS).last
    assert (first["files_kept"], first["files_moved"]) == (len(TREE), 0)
    # the object store's own record shows it at once
    assert first["proof_tree"] == ("recorded" if word == "s3" else "digest")
    again = there.push(*WORDS).last
    assert (again["files_kept"], again["proof_tree"], again["bytes_sent"]) == (len(TREE), "recorded", 0)
    swap_unseen(there, "b", b"xx")
    changed = there.push(*WORDS)
    assert (counts(changed)["files_moved"], changed.last["proof_moved"]) == (1, "digest")
    assert changed.last["proof_tree"] == "recorded"
    assert there.there()[b"b"] == b"xx"


def test_changes_at_the_target_are_found(local_there: Transfers) -> None:
    there = local_there
    there.make(MANY)
    there.push()
    there.push(*WORDS)
    path = there.root / "many/0007"
    status = path.stat()
    path.write_bytes(b"8")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert counts(there.push(*WORDS))["files_moved"] == 1
    assert there.there() == MANY


def test_without_the_option_all_files_are_hashed(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"11"})
    there.push()
    there.push(*WORDS)
    assert there.push("--checksum").last["proof_tree"] == "digest"
    assert there.push().last["proof_tree"] == "size"
    assert there.push("--recorded", exit=2).last["code"] == "usage"
    assert there.hibali("plan", there.source, "there:data", "--recorded", exit=2)
    there.hibali("plan", there.source, "there:data", *WORDS, exit=0)
