"""Test failures while packs are written: they are reported, and all other files are packed correctly."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import load_sites
from hibali.events import Packed, Retried, ignore
from hibali.locations import read_location
from hibali_plugins.packs import format as layout
from hibali_plugins.packs.writing import PackOption, PackRoute
from tests.support.trees import make_tree, read_tree
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.store import Store
from transfers.model.units import Committed, Item, Payload, Problem, Unit
from transfers.stores.open_store import open_store
from transfers.stores.open_views import ViewOpener

GONE = Problem("vanished", "it is gone")
Spoil = Callable[[Payload], None]


class Spoiled:
    """A source that modifies some payloads."""

    def __init__(self, store: Store, spoil: Spoil) -> None:
        self._store = store
        self._spoil = spoil
        self.facts = store.facts

    def list(self) -> Iterator[Entry]:
        return self._store.list()

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        return self._store.digest(entries)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        for payload in self._store.read(units):
            self._spoil(payload)
            yield payload


def drop(payload: Payload, position: int) -> None:
    """Simulate a vanished item."""
    start = sum(payload.sizes[:position])
    size = payload.sizes[position]
    data = bytes(payload.data)
    payload.data = data[:start] + data[start + size :]
    payload.sizes[position], payload.digests[position] = 0, None
    payload.problems[position] = GONE


def dropping(name: bytes) -> Spoil:
    def spoil(payload: Payload) -> None:
        for position, item in enumerate(payload.unit.items):
            if item.entry.path == name:
                drop(payload, position)

    return spoil


class Packing:
    """A source folder, a target for packs, and the events of a transfer between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packed = folder / "packed"

    def at(self, path: Path) -> Any:
        return read_location(str(path), load_sites())

    def carry(self, tree: dict[bytes, bytes], spoil: Spoil) -> list[Any]:
        source = open_store(self.at(make_tree(self.folder / "source", tree)))
        target = PackOption().open_target(open_store(self.at(self.packed)), "packed")
        entries = [entry for entry in source.list() if entry.kind is Kind.FILE]
        lock = target.lock("push", make=True)
        items = [Item(number, entry) for number, entry in enumerate(entries)]
        try:
            return list(PackRoute(1 << 30).carry(Spoiled(source, spoil), target, items))
        finally:
            lock.release()
            source.close()
            target.close()

    def held(self) -> dict[bytes, str | None]:
        store, _ = ViewOpener(ignore, datasets=False).find(self.at(self.packed))
        try:
            return {entry.path: entry.digest for entry in store.list()}
        finally:
            store.close()

    def by_tar(self) -> dict[bytes, Any]:
        out = self.folder / "out"
        out.mkdir()
        for pack in sorted(self.packed.glob("*.tar")):
            subprocess.run([shutil.which("tar") or "tar", "-xf", pack, "-C", out], check=True)
        return read_tree(out)


@pytest.fixture
def packing(tmp_path: Path, hibali_home: Any) -> Packing:
    del hibali_home
    return Packing(tmp_path)


def problems(events: list[Any]) -> dict[bytes, str]:
    return {
        one.item.entry.path: one.problem.code
        for one in events
        if isinstance(one, Committed) and one.problem is not None
    }


def test_a_vanished_file_is_reported_and_tar_skips_its_gap(packing: Packing) -> None:
    tree = {b"%d" % number: b"%d" % number * 5000 for number in range(9)}
    events = packing.carry(tree, dropping(b"4"))
    del tree[b"4"]
    assert problems(events) == {b"4": "vanished"}
    assert set(packing.held()) == set(tree)
    assert packing.by_tar() == tree


def test_a_file_corrupted_in_transit_goes_into_another_pack(packing: Packing) -> None:
    tree = {b"a": b"1" * 10, b"b": b"2" * 10}
    spoiled: list[bool] = []

    def spoil(payload: Payload) -> None:
        if not spoiled:
            spoiled.append(True)
            payload.data = b"x" + bytes(payload.data)[1:]

    events = packing.carry(tree, spoil)
    assert problems(events) == {}
    assert len([one for one in events if isinstance(one, Retried)]) == 1
    assert [one.members for one in events if isinstance(one, Packed)] == [1, 1]
    assert all(one.verification is Verification.DIGEST for one in events if isinstance(one, Committed))
    assert packing.by_tar() == tree


@pytest.mark.parametrize("size", [5 << 20, 9 << 20])
def test_a_failed_large_file_does_not_affect_others(
    packing: Packing, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "LARGE_BYTES", 8 << 20)
    tree = {b"large": os.urandom(size), b"small": b"1", b"other": os.urandom(5 << 20)}

    def spoil(payload: Payload) -> None:
        if payload.unit.segment and payload.unit.offset and payload.unit.items[0].entry.path == b"large":
            drop(payload, 0)

    events = packing.carry(tree, spoil)
    assert problems(events) == {b"large": "vanished"}
    assert set(packing.held()) == {b"small", b"other"}
    assert packing.by_tar() == {name: tree[name] for name in (b"small", b"other")}
    assert not [path for path in packing.packed.iterdir() if path.name.startswith(".hibali-")]


def test_no_pack_is_made_of_unreadable_files(packing: Packing) -> None:
    events = packing.carry({b"a": b"1"}, dropping(b"a"))
    assert problems(events) == {b"a": "vanished"}
    assert not list(packing.packed.glob("*.tar"))


def test_a_tar_file_without_an_index_is_removed(packing: Packing) -> None:
    packing.carry({b"a": b"1"}, lambda _: None)
    left = packing.packed / "pack-000002-0123456789abcdef.tar"
    left.write_bytes(b"half")
    packing.carry({b"b": b"1"}, lambda _: None)
    assert not left.exists()
    assert {b"a", b"b"} <= set(packing.held())
