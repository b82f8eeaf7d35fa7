"""Test that the source of a transfer is removed only with every property as it was listed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from transfers.agent.removing import remove_unchanged
from transfers.agent.safe_path import Root


def item(path: Path) -> dict[str, Any]:
    """Return the request for a file as it is now."""
    found = path.lstat()
    times = found.st_mtime_ns, found.st_ctime_ns
    state = found.st_size, *times, found.st_dev, found.st_ino, found.st_nlink
    facts = {"kind": "f", "size": found.st_size, "mtime_ns": found.st_mtime_ns}
    return {"path": os.fsencode(path.name), **facts, "exact": [*state]}


@pytest.fixture
def root(tmp_path: Path) -> Any:
    opened = Root(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))
    yield opened
    opened.close()


def test_a_file_replaced_by_one_of_the_same_size_and_time_stays(root: Root, tmp_path: Path) -> None:
    path, new = tmp_path / "a", tmp_path / "new"
    path.write_bytes(b"1")
    before, stamp = item(path), path.stat()
    new.write_bytes(b"2")
    os.utime(new, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    new.rename(path)
    problem = remove_unchanged(root, before, {})
    assert problem is not None
    assert problem[0] == "target-changed"
    assert path.read_bytes() == b"2"
    assert remove_unchanged(root, item(path), {}) is None
    assert not path.exists()
    assert remove_unchanged(root, before, {}) is None, "absent is done"


def test_all_names_of_a_file_are_removed_unless_it_changes_in_between(root: Root, tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("a", "b", "c")]
    names[0].write_bytes(b"1")
    for name in names[1:]:
        os.link(names[0], name)
    items, unlinked = [item(name) for name in names], dict[tuple[int, int], tuple[int, ...]]()
    assert remove_unchanged(root, items[0], unlinked) is None
    assert remove_unchanged(root, items[1], unlinked) is None
    os.link(names[2], tmp_path / "d")
    assert remove_unchanged(root, items[2], unlinked) is not None
    assert names[2].exists()
