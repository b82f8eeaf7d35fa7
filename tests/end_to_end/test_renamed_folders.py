"""Test transfers whose target or source is renamed away, replaced or unmounted meanwhile: never success for what is not at the path."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hibali as api
from hibali.events import Event, Moved
from tests.end_to_end.conftest import MakeTransfers
from tests.support.small_filesystem import small_filesystem
from tests.support.transfers import Transfers
from tests.support.trees import many_files, read_tree

TREE = {**many_files(700, 3000, folders=4), b"large": bytes(9_000_000)}
FORMER = "former"

# the contract suite tests every store that is a folder
STORES = ("local", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", "sftp")))


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    there = transfers_to(request.param)
    there.make(TREE)
    return there


def once(act: Callable[[], object]) -> Callable[[Event], None]:
    """Return a listener that acts when the first file is reported as moved."""
    pending = [act]

    def listen(event: Event) -> None:
        if isinstance(event, Moved) and pending:
            pending.pop()()

    return listen


def moved_away(folder: Path, *, replace: bool) -> Callable[[], None]:
    def act() -> None:
        folder.rename(folder.with_name(FORMER))
        if replace:
            folder.mkdir()

    return act


def transfer(operation: str, there: Transfers, target: Path, **options: Any) -> Any:
    """Run one way to write the tree to `target`, the folder `data` at the site or one of this machine."""
    if operation == "pull":
        return api.pull("there:full", target, **options)
    if operation in {"sync", "cp"}:
        return getattr(api, operation)("there:full", "there:data", **options)
    return api.push(there.source, "there:data", **options)


@pytest.mark.parametrize(
    "replace", [False, pytest.param(True, marks=pytest.mark.heavy)], ids=["renamed", "replaced"]
)
@pytest.mark.parametrize("operation", ["push", "pull", pytest.param("sync", marks=pytest.mark.heavy), "cp"])
def test_a_target_that_is_renamed_away_is_no_success(
    place: Transfers, operation: str, *, replace: bool
) -> None:
    if operation == "cp" and place.place.word == "sftp":
        return  # nothing is copied within a site without an agent
    place.place.plant("full", TREE)
    target = place.folder / "pulled" if operation == "pull" else place.root
    with pytest.raises(api.HibaliError) as raised:
        transfer(operation, place, target, on_event=once(moved_away(target, replace=replace)))
    assert raised.value.exit in {5, 6}
    receipt = transfer(operation, place, target)
    assert receipt.files_moved == receipt.files
    assert {name: leaf for name, leaf in read_tree(target).items() if leaf != ()}.items() >= TREE.items()


def test_a_source_that_is_renamed_away_is_complete_or_reported(place: Transfers) -> None:
    place.place.plant("full", TREE)
    source = place.root.with_name("full")
    complete = False
    with contextlib.suppress(api.IncompleteTransferError):
        api.sync("there:full", "there:data", on_event=once(moved_away(source, replace=False)))
        complete = True
    assert not complete or place.there() == TREE
    source.with_name(FORMER).rename(source)
    api.sync("there:full", "there:data")
    assert place.there().items() == TREE.items()


def test_an_unmounted_target_is_no_success(transfers_to: MakeTransfers) -> None:
    there = transfers_to("local")
    there.make(TREE)

    def unmount() -> None:
        subprocess.run(["umount", "-l", there.root], check=True)

    with small_filesystem(there.root.parent, "size=1m"), small_filesystem(there.root, "size=60m"):
        with pytest.raises(api.TryLaterError) as raised:
            api.push(there.source, "there:data", on_event=once(unmount))
        assert "unmounted" in str(raised.value.message)
        with small_filesystem(there.root, "size=60m"):
            assert api.push(there.source, "there:data").files_moved == len(TREE)
            assert there.there() == TREE
        subprocess.run(["mount", "-t", "tmpfs", "none", there.root], check=True)
