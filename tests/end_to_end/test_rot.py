"""Test that `pull` names files whose content at their site is not as recorded, and keeps the local copies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hibali.config.settings import load_sites
from hibali_api.transfer_request import transfer_request
from tests.support.transfers import Transfers, at_agents, counts, failed
from tests.support.trees import flip_byte, read_tree
from transfers.engine import operation

there = at_agents()

LARGE = os.urandom(1 << 20) * 40
TREE = {b"a": b"1" * 5000, b"b": b"22", b"sub/c": b"3" * 70_000, b"sub/d": b"4", b"large": LARGE}


def damage(path: Path) -> None:
    """Flip one byte in place and restore the time: size, time and inode stay as they were."""
    before = path.stat()
    flip_byte(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_ino == before.st_ino


def test_rot_is_named_and_the_local_copy_is_kept(there: Transfers, tmp_path: Path) -> None:
    there.make(TREE)
    there.push()
    rotten = {b"b", b"sub/c", b"large"}
    for name in rotten:
        damage(there.root / os.fsdecode(name))
    answer = there.pull(tmp_path / "new", exit=6)
    assert failed(answer) == dict.fromkeys(rotten, "rot")
    assert read_tree(tmp_path / "new") == {name: TREE[name] for name in TREE.keys() - rotten}
    old = {b"b": b"old", b"sub/c": b"older"}
    for name, content in old.items():
        (tmp_path / "new" / os.fsdecode(name)).write_bytes(content)
    answer = there.pull(tmp_path / "new", exit=6)
    assert failed(answer) == dict.fromkeys(rotten, "rot")
    assert read_tree(tmp_path / "new").items() >= old.items()
    # with the good copies here, also a comparison by digest keeps them
    assert failed(there.pull(there.source, "--checksum", exit=6)) == dict.fromkeys(rotten, "rot")
    assert read_tree(there.source) == TREE
    text = there.hibali("pull", "there:data", tmp_path / "new", exit=6).err
    assert b"--accept-rot" in text
    assert b"push --checksum" in text
    assert b"damaged, or rewritten with its old time" in text


def test_rot_is_accepted_or_repaired_by_a_push(there: Transfers, tmp_path: Path) -> None:
    there.make(TREE)
    there.push()
    damage(there.root / "a")
    one = there.hibali("pull", "there:data/a", tmp_path / "one", "--json", exit=6)
    assert list(failed(one).values()) == ["rot"]
    assert not (tmp_path / "one").exists()
    there.hibali("pull", "there:data/a", tmp_path / "one", "--accept-rot", exit=0)
    assert (tmp_path / "one").read_bytes() == (there.root / "a").read_bytes() != TREE[b"a"]
    assert counts(there.push("--checksum"))["files_moved"] == 1
    there.pull(tmp_path / "all")
    assert read_tree(tmp_path / "all") == TREE


@pytest.mark.heavy
def test_a_push_of_the_accepted_copy_renews_the_record(local_there: Transfers, tmp_path: Path) -> None:
    there = local_there
    there.make(TREE)
    there.push()
    damage(there.root / "a")
    there.hibali("pull", "there:data", there.source, "--checksum", "--accept-rot", exit=0)
    assert failed(there.pull(tmp_path / "one", exit=6)) == {b"a": "rot"}
    assert counts(there.push("--checksum"))["files_moved"] == 0
    there.pull(tmp_path / "two")
    assert read_tree(tmp_path / "two") == read_tree(there.root) != TREE
    there.hibali("verify", "there:data", exit=0)


def test_only_the_first_files_of_a_large_pull_are_compared(
    local_there: Transfers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = local_there
    there.make({b"a": b"1", b"b": b"2", b"c": b"3"})
    there.push()
    for name in ("a", "b", "c"):
        damage(there.root / name)
    for name, value in there.hibali.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(operation, "_MOST_COMPARED", 2)
    new = str(tmp_path / "new")
    request = transfer_request("pull", "there:data", new, {"files_from": None}, load_sites())
    receipt = operation.synchronise(request)
    assert [(each.path, each.code) for each in receipt.failures] == [(b"a", "rot"), (b"b", "rot")]
    assert read_tree(tmp_path / "new").keys() == {b"c"}


@pytest.mark.parametrize("change", ["time", "inode", "size"])
def test_a_changed_file_is_no_rot(local_there: Transfers, tmp_path: Path, change: str) -> None:
    there = local_there
    there.make({b"a": b"1" * 5000, b"b": b"2"})
    there.push()
    path, before = there.root / "a", (there.root / "a").stat()
    if change == "inode":
        path.rename(there.root / "b")
    path.write_bytes(b"2" * (5001 if change == "size" else 5000))
    time = before.st_mtime_ns + 10**9 * (change == "time")
    os.utime(path, ns=(time, time))
    there.pull(tmp_path / "new")
    assert read_tree(tmp_path / "new") == read_tree(there.root)


@pytest.mark.heavy
def test_workers_keep_the_local_copy(local_there: Transfers, tmp_path: Path) -> None:
    there = local_there
    tree = {b"%05d" % number: b"%d" % number for number in range(6000)}
    there.make(tree)
    there.push()
    damage(there.root / "00007")
    answer = there.pull(tmp_path / "new", "--workers", "2", exit=6)
    assert failed(answer) == {b"00007": "rot"}
    assert len(read_tree(tmp_path / "new")) == len(tree) - 1
    assert counts(there.pull(tmp_path / "new", "--accept-rot"))["files_moved"] == 1
