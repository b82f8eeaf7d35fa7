"""Test buckets whose listing lacks objects that the digest manifest records: they are missing, and nothing is deleted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.transfers import Transfers, failed

TREE = {b"a/b": b"1", b"a/c/d": b"2", b"e": b"3"}
GONE = (b"a/c/d", b"e")


@pytest.fixture
def short(bucket_there: Transfers, tmp_path: Path) -> Transfers:
    """Return a bucket that lost two objects, and a machine that has no records of it."""
    there = bucket_there
    there.make(TREE)
    there.push()
    for name in GONE:
        there.place.remove("data", name)
    there.hibali.env["HIBALI_STATE"] = str(tmp_path / "another machine")
    return there


@pytest.mark.heavy
def test_recorded_objects_that_are_not_listed_are_missing(short: Transfers, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert failed(short.verify(exit=6)) == dict.fromkeys(GONE, "missing")
    assert failed(short.pull(out, exit=6)) == dict.fromkeys(GONE, "missing")
    assert (out / "a/b").read_bytes() == b"1"
    assert failed(short.verify(short.source, "there:data", exit=6)) == dict.fromkeys(GONE, "missing")
    assert failed(short.pull(out, "--exclude", "e", exit=6)) == {b"a/c/d": "missing"}
    short.pull(out, "--exclude", "e", "--exclude", "c/", exit=0)
    assert failed(short.hibali("pull", "there:data/a", tmp_path / "a", "--json", exit=6)) == {
        b"c/d": "missing"
    }
    assert short.hibali("ls", "-R", "there:data", "--json", exit=6).last["code"] == "listing-incomplete"


def test_nothing_is_deleted_while_objects_are_missing(short: Transfers) -> None:
    answer = short._move("pull", "there:data", short.source, ("--delete",), 6)
    assert failed(answer) == {**dict.fromkeys(GONE, "missing"), b"": "deletions-left"}
    assert (short.source / "e").read_bytes() == b"3"


def test_a_push_sends_missing_objects_again(short: Transfers) -> None:
    assert short.push().last["files_moved"] == 2
    assert short.there() == TREE
    short.verify(exit=0)


@pytest.mark.heavy
def test_the_record_of_a_missing_object_can_be_removed(short: Transfers, tmp_path: Path) -> None:
    short.hibali("rm", "there:data/e", exit=0)
    short.hibali("rm", "there:data/e", exit=3)
    short.hibali("rm", "there:data/a/c/d", exit=0)
    assert short.pull(tmp_path / "out", exit=0).last["files_moved"] == 1


@pytest.mark.heavy
def test_a_push_with_delete_removes_the_records_of_missing_objects(short: Transfers) -> None:
    for name in ("a/c/d", "e"):
        (short.source / name).unlink()
    short.push(exit=0)
    assert failed(short.verify(exit=6)) == dict.fromkeys(GONE, "missing"), "without --delete they stay"
    short.push("--delete", exit=0)
    manifest = short.place.read("data", b".hibali/manifest.jsonl") or b""
    assert [json.loads(line)["key"] for line in manifest.splitlines()] == ["a/b"]
    short.verify(exit=0)


@pytest.mark.heavy
def test_a_tree_with_missing_objects_can_be_removed(short: Transfers) -> None:
    short.hibali("rm", "-r", "--yes", "there:data/a", exit=0)
    manifest = short.place.read("data", b".hibali/manifest.jsonl") or b""
    assert [json.loads(line)["key"] for line in manifest.splitlines()] == ["e"]
