"""Test file names that break careless programs, in both directions, and names that hibali reserves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hibali.text import printable
from tests.support.transfers import Transfers, at_agents, counts, failed, path_of
from tests.support.trees import HOSTILE_NAMES, ORDER_NAMES, make_tree, read_tree

there = at_agents("s3")
folder_there = at_agents()

OWN = b".hibali-" + b"0123456789abcdef" * 2


def hostile_tree(names: tuple[bytes, ...] = HOSTILE_NAMES) -> dict[bytes, bytes]:
    """Return each name as a file and as a folder, with names whose order is easy to get wrong."""
    tree = {name: b"as a file: " + name for name in names}
    for name in names:
        if not name.startswith(b".hibali"):
            tree[b"folders/" + name + b"/" + name] = b"in a folder: " + name
    return {**tree, **{name: b"ordered: " + name for name in ORDER_NAMES}}


def test_every_name_is_pushed_and_pulled_unchanged(folder_there: Transfers, tmp_path: Path) -> None:
    there = folder_there
    tree = hostile_tree()
    there.make(tree)
    receipt = there.push().last
    assert (receipt["files_moved"], receipt["proof_moved"]) == (len(tree), "digest")
    assert there.tree_there() == tree
    assert counts(there.push())["files_moved"] == 0
    listed = there.hibali("ls", "-R", "there:data", "--json", exit=0)
    files = [path_of(line) for line in listed.lines if line["kind"] == "entry" and line["type"] == "file"]
    assert sorted(files) == sorted(tree)
    assert there.verify().last["files_kept"] == len(tree)
    there.pull(tmp_path / "back")
    assert read_tree(tmp_path / "back") == tree
    (there.source / "a0").unlink()
    (there.source / "--delete").unlink()
    assert counts(there.push("--delete"))["files_deleted"] == 2
    assert there.tree_there() == read_tree(there.source)


def test_names_are_listed_sorted_by_bytes(there: Transfers) -> None:
    there.make({name: name for name in ORDER_NAMES})
    there.push()
    listed = there.hibali("ls", "-R", "there:data", "--json", exit=0)
    names = [path_of(line) for line in listed.lines if line["kind"] == "entry" and line["type"] == "file"]
    assert names == [b"a-x", b"a.b", b"a/b", b"a0"]
    plain = there.hibali("ls", "there:data", exit=0).out.splitlines()
    assert plain == [b"a-x", b"a.b", b"a/", b"a0"]


def test_no_control_characters_are_printed(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"\x1b[31mred\x07": b"1", b"new\nline": b"2", "bidi \u202e".encode(): b"3", b"\xff": b"4"})
    os.mkfifo(there.source / "fifo\x1b]0;title\x07")
    answer = there.hibali("push", "-v", there.source, "there:data", exit=6)
    listed = there.hibali("ls", "there:data", exit=0)
    for output in (answer.err, answer.out, listed.out):
        assert b"\x1b" not in output
        assert b"\x07" not in output
        assert "\u202e".encode() not in output
    assert len(listed.out.splitlines()) == 4


def test_files_with_reserved_names_are_refused(there: Transfers) -> None:
    """Check that names of hibali's partial files are refused, because the receiver could not distinguish them from an interrupted push."""
    there.make({b"sub/" + OWN: b"mine", b"other": b"1"})
    before = there.state_there()
    answer = there.push(exit=8)
    assert answer.last["code"] == "unsafe-name"
    assert OWN.decode() in answer.last["message"]
    assert there.state_there() == before
    there.push("--exclude", ".hibali-*")
    assert there.there() == {b"other": b"1"}


@pytest.mark.parametrize(
    "name", [OWN[:-1], OWN + b"0", OWN.upper(), b".hibali-x", b"x" + OWN, b".hibali.txt"]
)
def test_names_similar_to_reserved_ones_are_transferred(there: Transfers, name: bytes) -> None:
    there.make({name: b"mine", b"sub/" + name + b"/file": b"mine"})
    there.push()
    assert there.there() == {name: b"mine", b"sub/" + name + b"/file": b"mine"}


def test_a_users_file_with_a_reserved_name_at_the_target_is_never_deleted(there: Transfers) -> None:
    there.place.plant("data", {OWN: b"theirs", b"extra": b"1"})
    there.make({b"a": b"1"})
    assert counts(there.push("--delete"))["files_deleted"] == 1
    assert there.there() == {OWN: b"theirs", b"a": b"1"}


def test_a_name_longer_than_the_target_can_hold_is_refused(bucket_there: Transfers) -> None:
    there = bucket_there
    deep = b"/".join([b"x" * 200] * 6)
    there.make({deep: b"1", b"other": b"2"})
    answer = there.push(exit=8)
    assert answer.last["code"] == "unsafe-name"
    assert there.there() == {}


UNHOLDABLE = tuple(name for name in HOSTILE_NAMES if name.decode("utf-8", "replace").encode() != name)


def test_names_that_a_bucket_cannot_store_are_reported_before_the_transfer(bucket_there: Transfers) -> None:
    there = bucket_there
    there.make({**dict.fromkeys(UNHOLDABLE, b"1"), b"other": b"2"})
    answer = there.push(exit=8)
    assert answer.last["code"] == "unsafe-name"
    assert "UTF-8" in answer.last["message"]
    assert there.there() == {}
    assert there.place.names("") == set()


def test_every_name_a_bucket_can_store_is_pushed_and_pulled_unchanged(
    bucket_there: Transfers, tmp_path: Path
) -> None:
    """Check that a name is either refused before the transfer or comes back unchanged."""
    there = bucket_there
    # a dry run writes no test object, so the server has to be known
    there.hibali("sites", "check", "there", exit=0)
    tree = {name: b"content of " + name for name in HOSTILE_NAMES}
    tree.update({name: b"ordered: " + name for name in ORDER_NAMES})
    make_tree(there.source, tree)
    held = dict(tree)
    expected = {name for name in tree if name not in UNHOLDABLE}
    while held:
        answer = there.hibali("push", there.source, "there:data", "-n", "--json")
        if answer.exit == 0:
            break
        assert (answer.exit, answer.last["code"]) == (8, "unsafe-name"), str(answer)
        refused = [name for name in held if printable(name) in answer.last["message"]]
        assert refused, str(answer)
        for name in refused:
            del held[name]
            (there.source / os.fsdecode(name)).unlink()
    assert {
        b"with spaces  and  more",
        b"-leading-dash",
        b"*",
        b".hibali-x",
        b"x" * 255,
        *ORDER_NAMES,
    } <= held.keys()
    assert held.keys() <= expected
    there.push()
    assert there.there() == held
    assert counts(there.push())["files_moved"] == 0
    there.pull(tmp_path / "back")
    assert read_tree(tmp_path / "back") == held
    there.verify()


@pytest.mark.parametrize("key", ["data/../../climbs", "data/..", "data/x/../y", "data//double", "data/./dot"])
def test_keys_with_parent_folders_never_leave_the_folder(
    bucket_there: Transfers, tmp_path: Path, key: str
) -> None:
    """Check that nothing outside the folder is written, even if the server refuses or rewrites such keys."""
    there = bucket_there
    there.place.plant("data", {b"good": b"1"})
    try:
        there.place.bucket.put(key, b"evil")  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - each server refuses in its own way, and then there is nothing to test
        return
    back = tmp_path / "inner/back"
    answer: Any = there.hibali("pull", "there:data", back, "--json")
    assert answer.exit in {0, 6, 8}, str(answer)
    assert b"Traceback" not in answer.err
    outside = {path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"evil"}
    assert all(back in path.parents for path in outside)


def test_a_path_with_parent_folders_is_refused_on_the_command_line(there: Transfers) -> None:
    there.make({b"a": b"1"})
    there.hibali("push", there.source, "there:../x", exit=2)
    assert failed(there.push()) == {}
