"""Test listing large folders: order, memory, and names that change meanwhile."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path

import pytest

from transfers.agent import names
from transfers.agent.listing import Walk
from transfers.agent.protocol import IS_FOLDER, problem_of
from transfers.agent.safe_path import Root

MANY = 20_000
BYTES_A_NAME = 30  # the name itself has 12; an object for each would take 400


def test_large_folder_needs_little_memory_per_name(tmp_path: Path, root: Root) -> None:
    first = tmp_path / "tree" / "name-0000000"
    first.touch()
    for number in range(1, MANY):
        os.link(first, first.with_name(f"name-{number:07}"))
    walk = Walk(root)
    tracemalloc.start()
    try:
        listed = sum(len(records) for _, records in walk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (listed, walk.count, walk.problems) == (MANY, MANY, [])
    assert peak < names._RUN * 150 + MANY * BYTES_A_NAME, "an object for each"


def test_sort_by_whole_path_across_runs(tmp_path: Path, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_RUN", 3)
    for name in ("a/b", "a/z", "a-x", "a.b", "a0", "b", "c/d/e", "c!", "\xff/g", "é"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    listed = [record for _, records in Walk(root) for record in records]
    orders = [record.path + b"/" if record.kind == IS_FOLDER else record.path for record in listed]
    assert orders == sorted(orders)
    assert len(orders) == 10 + 4


@pytest.mark.parametrize("was_folder", [True, False])
def test_name_that_changes_its_kind_makes_the_listing_incomplete(
    tmp_path: Path, root: Root, *, was_folder: bool
) -> None:
    """Its position in the order may have passed: nothing may be deleted because the listing lacks it."""
    tree = tmp_path / "tree"
    (tree / "a").mkdir()
    changing = tree / "b"
    changing.mkdir() if was_folder else changing.touch()
    walk = Walk(root)
    listing = iter(walk)
    assert next(listing)[0] == b"a"
    changing.rmdir() if was_folder else changing.unlink()
    changing.touch() if was_folder else changing.mkdir()
    assert list(listing) == []
    number = errno.ENOTDIR if was_folder else errno.EISDIR
    assert walk.problems == [(b"b", problem_of(OSError(number, os.strerror(number))))]
