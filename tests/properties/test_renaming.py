"""Test with arbitrary trees that --rename gives every file a path of its own, or refuses before anything changes."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from hibali.errors import Exit, RefusedError
from tests.properties.test_synchronise import DELETING, few, leaves, push
from tests.properties.trees import Model, parents, trees
from tests.support.trees import Folder, Leaf, make_tree, read_tree
from transfers.model.facts import unsafe_component

# each with the same rule for `re.sub`, which replaces the first match or all
RULES = (
    ("s/a/b/", "a", "b", 1),
    ("s/a/b/g", "a", "b", 0),
    ("s/-x|\\.b|0$//g", r"-x|\.b|0$", "", 0),
    ("s|/|_|", "/", "_", 1),
    ("s|/|/../|", "/", "/../", 1),
    ("s|^([^/]*)/|new/\\1-|", "^([^/]*)/", r"new/\1-", 1),
    ("s|^.*/||", "^.*/", "", 1),
    ("s|[aA]|a/A|", "[aA]", "a/A", 1),
    ("s|$|.old|", "$", ".old", 1),
    ("s|^a$|..|", "^a$", "..", 1),
)
SEVERAL = st.lists(st.sampled_from(RULES), min_size=1, max_size=2)


def new_name(path: bytes, rules: list[tuple[str, str, str, int]]) -> bytes:
    text = path.decode("utf-8", "surrogateescape")
    for _, pattern, replacement, count in rules:
        text = re.sub(pattern, replacement, text, count=count)
    return text.encode("utf-8", "surrogateescape")


def expected(tree: dict[bytes, Leaf], rules: list[tuple[str, str, str, int]]) -> dict[bytes, Leaf] | None:
    """Return the tree at the target, in which folders are only named if they are empty; None if it is refused."""
    pairs = [(new_name(path, rules), leaf) for path, leaf in tree.items()]
    files = Counter(path for path, leaf in pairs if not isinstance(leaf, Folder))
    inside = {above for path, _ in pairs for above in parents(path)}
    folders = inside | {path for path, leaf in pairs if isinstance(leaf, Folder)}
    if any(unsafe_component(path) for path, _ in pairs) or any(count > 1 for count in files.values()):
        return None
    if files.keys() & folders:
        return None
    return {path: leaf for path, leaf in pairs if path not in inside}


@few
@given(source=trees(), target=trees(), rules=SEVERAL)
@pytest.mark.usefixtures("hibali_home")
def test_every_file_gets_a_path_of_its_own_or_nothing_changes(
    tmp_path: Path, source: Model, target: Model, rules: list[tuple[str, str, str, int]]
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    here, there = make_tree(folder / "here", leaves(source)), make_tree(folder / "there", leaves(target))
    renaming = replace(DELETING, rename=tuple(rule for rule, *_ in rules))
    sent, before = read_tree(here), read_tree(there)
    wanted = expected(sent, rules)
    if wanted is None:
        event("refused")
        with pytest.raises(RefusedError):
            push(here, there, renaming)
        assert read_tree(there) == before
        return
    event("renamed" if wanted != sent else "unchanged")
    receipt = push(here, there, renaming)
    assert (receipt.exit, receipt.files_failed) == (Exit.DONE, 0)
    assert read_tree(there) == wanted
    assert read_tree(here) == sent
    again = push(here, there, renaming)
    assert (again.files_moved, again.files_deleted, again.bytes_sent) == (0, 0, 0)
    assert again.files_kept == receipt.files
