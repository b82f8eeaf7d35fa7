"""Test with two folders that the target equals the source after a push, and that a second push moves nothing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from hibali.config.settings import load_sites
from hibali.errors import Exit
from hibali.locations import read_location
from tests.properties.trees import Model, parents, trees
from tests.support.trees import File, Folder, Leaf, Link, make_tree, read_tree, walk_paths
from transfers.engine.operation import synchronise
from transfers.engine.request import Request
from transfers.history.journal import Receipt
from transfers.model.entry import Kind
from transfers.model.rules import DeleteLimit, Rules

DELETING = Rules(delete=True, delete_limit=DeleteLimit(percent=100), allow_empty_source=True)
few = settings(
    deadline=None,
    max_examples=settings.default.max_examples // 8,
    # every example creates its own folders; the fixture only provides the folder of hibali's ledger
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def leaves(tree: Model) -> dict[bytes, Leaf]:
    made: dict[bytes, Leaf] = {}
    for path, node in tree.items():
        if node.kind is Kind.FOLDER:
            made[path] = Folder()
        elif node.kind is Kind.LINK:
            made[path] = Link(node.link)
        else:
            made[path] = File(node.content, executable=bool(node.mode & 0o100), mtime_ns=node.mtime_ns)
    return made


def details(root: Path) -> dict[bytes, tuple[int, bool]]:
    """Return time and execute bit of every file."""
    return {
        path: (status.st_mtime_ns, bool(status.st_mode & 0o100))
        for path, status in walk_paths(root)
        if os.path.isfile(os.fsencode(root) + b"/" + path)  # noqa: PTH113 - a name in bytes
        and not os.path.islink(os.fsencode(root) + b"/" + path)  # noqa: PTH114 - as above
    }


def push(source: Path, target: Path, rules: Rules) -> Receipt:
    known = load_sites()
    return synchronise(
        Request("push", read_location(str(source), known), read_location(str(target), known), rules)
    )


@few
@given(source=trees(), target=trees())
@pytest.mark.usefixtures("hibali_home")
def test_a_push_makes_the_target_the_source(tmp_path: Path, source: Model, target: Model) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    here, there = make_tree(folder / "here", leaves(source)), make_tree(folder / "there", leaves(target))
    receipt = push(here, there, DELETING)
    assert (receipt.exit, receipt.files_failed) == (Exit.DONE, 0)
    assert read_tree(there) == read_tree(here)
    assert details(there) == details(here)
    again = push(here, there, DELETING)
    assert (again.exit, again.files_moved, again.files_deleted, again.bytes_sent) == (Exit.DONE, 0, 0, 0)
    assert again.files_kept == again.files == receipt.files


@few
@given(source=trees(), target=trees())
@pytest.mark.usefixtures("hibali_home")
def test_a_push_without_delete_removes_nothing(tmp_path: Path, source: Model, target: Model) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    here, there = make_tree(folder / "here", leaves(source)), make_tree(folder / "there", leaves(target))
    before = read_tree(there)
    receipt = push(here, there, Rules())
    after, sent = read_tree(there), read_tree(here)
    for path, leaf in before.items():
        filled = isinstance(leaf, Folder) and any(path in parents(other) for other in source)
        if path not in source and not filled:
            assert after[path] == leaf
    arrived = {path for path, leaf in sent.items() if after.get(path) == leaf}
    missing = {path for path in set(sent) - arrived if not isinstance(sent[path], Folder)}
    assert (receipt.exit is Exit.INCOMPLETE) or not missing
    assert receipt.files_deleted == 0
    assert receipt.files_failed >= len(missing)
