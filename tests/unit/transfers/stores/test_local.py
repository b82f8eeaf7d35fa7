"""Test that a local store handles small files in the folder that its path leads to now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hibali.locations import parse_location
from transfers.model.entry import Entry, Kind
from transfers.stores.local import LocalStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    (tmp_path / "place").mkdir()
    location = parse_location(str(tmp_path / "place"), {}, b"/")
    assert location is not None
    opened = open_store(location)
    assert isinstance(opened, LocalStore)
    yield opened
    opened.close()


def entry(path: bytes, content: bytes) -> Entry:
    return Entry(path, Kind.FILE, len(content), 1_500_000_000_000_000_000, 0o644)


def test_a_replaced_root_folder_is_detected(store: LocalStore, tmp_path: Path) -> None:
    assert store.store_whole(entry(b"a/b", b"old"), b"old")
    (tmp_path / "place").rename(tmp_path / "before")
    assert store.find_whole(b"a/b") is None
    (tmp_path / "place").mkdir()
    assert store.find_whole(b"a/b") is None
    assert store.store_whole(entry(b"a/b", b"new"), b"new")
    assert store.fetch_whole(entry(b"a/b", b"new")) == b"new"
    assert (tmp_path / "before/a/b").read_bytes() == b"old"


def test_a_replaced_subfolder_is_opened_again(store: LocalStore, tmp_path: Path) -> None:
    assert store.store_whole(entry(b"a/b", b"old"), b"old")
    (tmp_path / "place/a").rename(tmp_path / "place/c")
    assert store.find_whole(b"a/b") is None
    found = store.find_whole(b"c/b")
    assert found is not None
    assert store.remove_whole(found) is None
    assert not (tmp_path / "place/c/b").exists()


def test_the_folder_of_a_file_is_served_by_the_same_agent(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "place/a").write_bytes(b"1")
    location = parse_location(str(tmp_path / "place/a"), {}, b"/")
    assert location is not None
    with closing(open_store(location)) as store:
        with closing(store.folder_of_file(location) or store) as folder:
            assert (store.root_path, folder.root_path) == tuple(
                bytes(tmp_path / name) for name in ("place/a", "place")
            )
            assert [each.path for each in folder.list()] == [b"a"]
            assert folder.root_identity() is not None
        assert len(store.identities()) == 1
