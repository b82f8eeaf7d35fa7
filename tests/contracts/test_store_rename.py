"""Test that `mv` within a store keeps what is recorded about files under their new names, and forgets the old ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hibali as api
from tests.contracts.subjects import Subject, store_words, subjects
from tests.support.trees import make_tree

TREE = {b"a": b"1", b"sub/b": b"22", b"sub/deep/c": b"333"}


@pytest.fixture(params=store_words())
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    yield from subjects(request.param, request, tmp_path, monkeypatch)


def moves(old: str, new: str) -> bool:
    """Rename a file; return False if the store cannot."""
    try:
        api.mv(old, new)
    except api.RefusedError as problem:
        if problem.code != "cannot-copy-at-site":
            raise
        return False
    return True


def test_a_moved_file_and_a_moved_folder_stay_verified_and_are_not_sent_again(
    subject: Subject, tmp_path: Path
) -> None:
    subject.open().make_root()
    source, there = make_tree(tmp_path / "source", TREE), subject.location().text
    api.push(source, there)
    if not moves(f"{there}/a", f"{there}/new/one"):  # it neither renames nor copies
        assert subject.files() == TREE
        return
    api.mv(f"{there}/sub", f"{there}/other")
    moved = make_tree(
        tmp_path / "moved", {b"new/one": b"1", b"other/b": b"22", b"other/deep/c": b"333", b"more": b"4"}
    )
    for old, new in (("a", "new/one"), ("sub/b", "other/b"), ("sub/deep/c", "other/deep/c")):
        (source / old).rename(moved / new)
    assert set(subject.listed()) >= {b"new/one", b"other/b", b"other/deep/c"}
    if (
        not subject.open().facts.mtimes
    ):  # nothing tells whether a file has changed, so that all are sent again
        assert subject.files() == {b"new/one": b"1", b"other/b": b"22", b"other/deep/c": b"333"}
        return
    assert api.verify(there).files == 3
    assert (api.push(moved, there, delete=True).files_moved, api.push(moved, there).files_moved) == (1, 0)
    assert subject.files() == {b"new/one": b"1", b"other/b": b"22", b"other/deep/c": b"333", b"more": b"4"}
    assert api.verify(moved, there).files == 4
