"""Test that a packed location has the contents of its source at each push, also for the tar of this machine."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from hibali.config.settings import load_sites
from hibali.errors import Exit
from hibali.locations import read_location
from hibali_plugins.packs.writing import PackOption
from tests.properties.test_synchronise import DELETING, details, leaves
from tests.properties.trees import Model, trees
from tests.support.trees import make_tree, read_tree
from transfers.engine.operation import synchronise
from transfers.engine.request import Request
from transfers.history.journal import Receipt
from transfers.model.rules import Rules

few, many = (
    settings(
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    for examples in (2, 30)
)


def move(source: Path, target: Path, rules: Rules, pack_bytes: int = 0) -> Receipt:
    known = load_sites()
    source_location, target_location = (read_location(str(path), known) for path in (source, target))
    options = (PackOption(pack_bytes),) if pack_bytes else ()
    return synchronise(Request("sync", source_location, target_location, rules, options=options))


@pytest.mark.heavy
@few
@given(first=trees(), second=trees())
@pytest.mark.usefixtures("hibali_home")
def test_the_newest_pack_is_read(tmp_path: Path, first: Model, second: Model) -> None:
    packs_hold_the_last(tmp_path, first, second)


@many
@given(first=trees(), second=trees())
@pytest.mark.usefixtures("hibali_home")
@pytest.mark.heavy
def test_the_newest_of_many_packs_is_read(tmp_path: Path, first: Model, second: Model) -> None:
    packs_hold_the_last(tmp_path, first, second)


def packs_hold_the_last(tmp_path: Path, first: Model, second: Model) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    packed, out = folder / "packed", folder / "out"
    make_tree(folder / "first", leaves(first))
    sent = make_tree(folder / "second", leaves(second))
    move(folder / "first", packed, DELETING, 1 << 20)
    receipt = move(sent, packed, DELETING, 1 << 20)
    assert (receipt.exit, receipt.files_failed) == (Exit.DONE, 0)
    again = move(sent, packed, DELETING, 1 << 20)
    assert (again.files_moved, again.files_deleted, again.packs_made) == (0, 0, 0)
    if first or second:
        assert move(packed, out, DELETING).exit is Exit.DONE
        assert read_tree(out) == read_tree(sent)
        assert details(out) == details(sent)


@few
@given(tree=trees())
@pytest.mark.usefixtures("hibali_home")
def test_tar_reads_the_packs_as_they_were_pushed(tmp_path: Path, tree: Model) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    sent, out = make_tree(folder / "sent", leaves(tree)), folder / "out"
    out.mkdir()
    move(sent, folder / "packed", DELETING, 1 << 20)
    tar = shutil.which("tar")
    assert tar is not None
    for pack in (folder / "packed").glob("*.tar"):
        done = subprocess.run([tar, "-xf", pack, "-C", out], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    assert read_tree(out) == read_tree(sent)
    assert details(out) == details(sent)
