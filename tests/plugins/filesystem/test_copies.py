"""Test that the copies of a tree become one transfer."""

from __future__ import annotations

import posixpath

from hypothesis import given
from hypothesis import strategies as st

from hibali_plugins.filesystem.copies import Batch, group

NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


def test_a_tree_is_one_batch() -> None:
    pairs = [("site/a", "/tmp/b"), ("site/a/x", "/tmp/b/x"), ("site/a/y/z", "/tmp/b/y/z")]
    assert group(pairs[1:]) == [Batch("site/a", "/tmp/b", ("x", "y/z"))]
    assert group(pairs) == [Batch("site/a", "/tmp/b", ("", "x", "y/z"))]


def test_a_file_gets_another_name() -> None:
    assert group([("site/a/x", "/tmp/y")]) == [Batch("site/a/x", "/tmp/y", ())]


def test_files_of_several_folders_are_flattened() -> None:
    pairs = [("s/a/x", "/t/x"), ("s/b/y", "/t/y"), ("s/b/z", "/t/z")]
    assert group(pairs) == [Batch("s/a", "/t", ("x",)), Batch("s/b", "/t", ("y", "z"))]


def test_nothing_is_no_batch() -> None:
    assert group([]) == []


@given(st.lists(st.tuples(NAMES, NAMES), max_size=6))
def test_every_copy_is_made_once(names: list[tuple[str, str]]) -> None:
    pairs = [(f"site/{one}", f"/t/{other}") for one, other in names]
    made = [
        (posixpath.join(batch.source, name), posixpath.join(batch.target, name))
        for batch in group(pairs)
        for name in batch.names or ("",)
    ]
    assert sorted((one.rstrip("/"), other.rstrip("/")) for one, other in made) == sorted(set(pairs))
