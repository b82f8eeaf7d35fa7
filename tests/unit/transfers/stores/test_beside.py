"""Test stores that share one connection: requests of each concern its own root, also after failures."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hibali.errors import NotFoundError, TryLaterError
from hibali.locations import Location, parse_location
from tests.support.trees import make_tree
from transfers.stores.agent_store import PosixStore
from transfers.stores.local import open_store


def location_of(path: Path) -> Location:
    location = parse_location(str(path), {}, b"/")
    assert location is not None
    return location


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PosixStore]:
    make_tree(tmp_path, {b"one/file": b"1", b"two/file": b"22", b"two/more": b"333"})
    with closing(open_store(location_of(tmp_path / "one"))) as opened:
        yield opened


def names(store: PosixStore) -> list[bytes]:
    return [entry.path for entry in store.list()]


def test_both_are_used_in_turn(store: PosixStore, tmp_path: Path) -> None:
    beside = store.beside(location_of(tmp_path / "two"))
    for _ in range(2):
        assert (names(store), names(beside)) == ([b"file"], [b"file", b"more"])
        found, theirs = store.stat(b"file"), beside.stat(b"file")
        assert found is not None
        assert theirs is not None
        assert (found.size, theirs.size) == (1, 2)
    beside.close()
    assert names(store) == [b"file"]


def test_a_lock_that_is_refused_changes_no_root(store: PosixStore, tmp_path: Path) -> None:
    assert names(store) == [b"file"]
    with closing(open_store(location_of(tmp_path / "two"))) as other:
        held = other.lock("push")
        with pytest.raises(TryLaterError):
            store.beside(location_of(tmp_path / "two")).lock("rm")
        assert names(store) == [b"file"]
        held.release()


def test_a_root_that_vanished_locks_no_other(store: PosixStore, tmp_path: Path) -> None:
    assert names(store) == [b"file"]
    beside = store.beside(location_of(tmp_path / "two"))
    (tmp_path / "two").rename(tmp_path / "three")
    with pytest.raises(NotFoundError):
        beside.lock("rm")
    assert not (tmp_path / "one/.hibali").exists()
    assert names(store) == [b"file"]


def test_stores_of_subfolders_leave_no_open_files(store: PosixStore, tmp_path: Path) -> None:
    (tmp_path / "one/sub").mkdir()

    def write() -> None:
        substore, _ = store.substore(b"sub")
        lock = substore.lock("push")
        assert json.loads((tmp_path / "one/sub/.hibali/lock").read_bytes())["operation"] == "push"
        lock.finish()

    write()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(5):
        write()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
