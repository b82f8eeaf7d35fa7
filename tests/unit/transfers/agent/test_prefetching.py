"""Test that a listing of a slow filesystem examines several names and folders at a time, with the same result."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from transfers.agent import prefetching
from transfers.agent.listing import Walk
from transfers.agent.protocol import Record
from transfers.agent.safe_path import Root
from transfers.agent.threads import THREADS

_SLOW = 0.0005  # seconds for a name


class SlowNames:
    """os.stat as a filesystem with a distant metadata server answers it; counts the calls at a time."""

    def __init__(self) -> None:
        self._stat = os.stat
        self._guard = threading.Lock()
        self._now = 0
        self.most = 0

    def __call__(self, *words: Any, **more: Any) -> os.stat_result:
        with self._guard:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(_SLOW)
        try:
            return self._stat(*words, **more)
        finally:
            with self._guard:
                self._now -= 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowNames:
    found = SlowNames()
    monkeypatch.setattr(os, "stat", found)
    return found


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """Check that a listing leaves no threads."""
    before = threading.active_count()
    yield
    assert threading.active_count() <= before


def make_files(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"file-{number:04}").touch()


def listed(root: Root, *, shallow: bool = False) -> tuple[list[Record], Walk]:
    walk = Walk(root, shallow=shallow)
    return [record for _, records in walk for record in records], walk


def test_names_of_a_fast_filesystem_are_examined_in_one_thread(
    tmp_path: Path, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetching, "_SLOW_SECONDS", 10.0)  # whatever else this machine does
    make_files(tmp_path / "tree", 1200)
    before = threading.active_count()
    walk = Walk(root)
    assert {threading.active_count() for _ in walk} == {before}


@pytest.mark.parametrize("shallow", [False, True])
@pytest.mark.parametrize(
    ("folders", "files"),
    [
        ([""], 1200),
        ([f"a/b{number}" for number in range(60)], 5),
        ([f"a{number % 3}/b{number % 9}/c/d{number}" for number in range(60)], 9),
    ],
    ids=["one folder", "many folders", "deep folders"],
)
def test_names_of_a_slow_filesystem_are_examined_in_several_threads(
    tmp_path: Path,
    root: Root,
    monkeypatch: pytest.MonkeyPatch,
    folders: list[str],
    files: int,
    *,
    shallow: bool,
) -> None:
    for folder in folders:
        make_files(tmp_path / "tree" / folder, files)
    expected, before = listed(root, shallow=shallow)
    slow = SlowNames()
    monkeypatch.setattr(os, "stat", slow)
    found, walk = listed(root, shallow=shallow)
    assert found == expected
    assert (walk.count, walk.problems) == (before.count, [])
    assert slow.most <= THREADS + 1
    assert shallow or slow.most > THREADS // 2


def test_a_folder_that_is_replaced_by_a_symlink_is_a_problem(
    tmp_path: Path, root: Root, slow: SlowNames
) -> None:
    tree = tmp_path / "tree"
    make_files(tmp_path / "outside", 3)
    make_files(tree / "a", 20)
    for number in range(40):
        make_files(tree / f"b{number:02}", 1)
    walk = Walk(root)
    found = []
    for _, records in walk:
        found += [record.path for record in records]
        if found[-1] == b"b00":
            (tree / "b39" / "file-0000").unlink()
            (tree / "b39").rmdir()
            (tree / "b39").symlink_to(tmp_path / "outside")
    assert slow.most > 1
    assert not any(path.startswith(b"b39/") for path in found)
    assert [path for path, _ in walk.problems] == [b"b39"]


def test_a_listing_that_is_given_up_ends_its_threads(tmp_path: Path, root: Root, slow: SlowNames) -> None:
    make_files(tmp_path / "tree", 1200)
    listing = iter(Walk(root))
    for _ in range(5):
        next(listing)
    assert slow.most > 1
    listing.close()  # type: ignore[attr-defined]


def test_what_was_found_long_ago_is_found_again(
    tmp_path: Path, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder may be reached hours after it was visited."""
    monkeypatch.setattr(prefetching, "_SLOW_SECONDS", -1.0)
    monkeypatch.setattr(prefetching, "_RECENT_SECONDS", 0.0)
    tree = tmp_path / "tree"
    make_files(tree / "a", 20)
    make_files(tree / "b", 1)
    make_files(tree, 20)
    found = {}
    for _, records in Walk(root):
        found.update({record.path: record.size for record in records})
        if records[-1].path == b"a":
            (tree / "b" / "file-0000").rename(tree / "b" / "file-0001")
            (tree / "file-0001").write_bytes(b"longer")
    assert b"b/file-0001" in found
    assert b"b/file-0000" not in found
    assert found[b"file-0001"] == 6


def test_folders_that_vanish_before_they_are_listed_keep_nothing(
    tmp_path: Path, root: Root, slow: SlowNames
) -> None:
    tree = tmp_path / "tree"
    for number in range(40):
        make_files(tree / f"a{number:02}", 1)
    walk = Walk(root)
    listing = iter(walk)
    next(listing)
    for number in range(1, 40, 2):
        (tree / f"a{number:02}" / "file-0000").unlink()
        (tree / f"a{number:02}").rmdir()
    list(listing)
    assert slow.most > 1
    assert not walk._prefetcher._visits
    assert not walk._prefetcher._below
    assert walk.count == 2 * 20 or walk.problems == []
