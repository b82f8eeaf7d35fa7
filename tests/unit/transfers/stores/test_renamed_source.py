"""Test which folders a renamed listing has, and that an incomplete listing stays incomplete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from transfers.model.entry import NO_SOURCE, Entry, Kind, Verification
from transfers.model.facts import Facts
from transfers.model.store import Store
from transfers.model.units import ListingIncompleteError, Problem
from transfers.stores.renamed_source import RenamedSource


class Listing:
    """The listing of a store with these names, of which those of folders end with a slash."""

    def __init__(self, *names: bytes, folders: bool = True, fails: bool = False) -> None:
        self._names = names
        self._fails = fails
        self.facts = Facts("posix", Verification.DIGEST, Verification.DIGEST, folders=folders)

    def list(self) -> Iterator[Entry]:
        for name in sorted(self._names):
            yield Entry(name.rstrip(b"/"), Kind.FOLDER if name.endswith(b"/") else Kind.FILE)
        if self._fails:
            raise ListingIncompleteError("here", [(b"a/closed", Problem("denied", "permission denied"))])


def renamed(listing: Listing, *rules: str) -> list[Entry]:
    return list(RenamedSource(cast("Store", cast("Any", listing)), rules).list())


def test_a_listing_is_sorted_by_its_new_names() -> None:
    found = renamed(Listing(b"a/", b"a/x", b"b/", b"b/y"), "s/^a/z/")
    assert [(each.path, each.source_path) for each in found] == [
        (b"b", b"b"),
        (b"b/y", b"b/y"),
        (b"z", b"a"),
        (b"z/x", b"a/x"),
    ]


def test_only_folders_with_content_and_empty_ones_are_left() -> None:
    names = b"a/", b"a/deep/", b"a/deep/x", b"a/empty/", b"b/", b"b/y"
    found = renamed(Listing(*names), "s|a/deep/|flat_|", "s|b/|new/deeper/|")
    assert [(each.order, each.renamed_from) for each in found] == [
        (b"a/", b""),
        (b"a/empty/", b""),
        (b"flat_x", b"a/deep/x"),
        (b"new/", NO_SOURCE),
        (b"new/deeper/", NO_SOURCE),
        (b"new/deeper/y", b"b/y"),
    ]
    assert [each.order for each in renamed(Listing(b"a/x", folders=False), "s|/|/b/|")] == [b"a/b/x"]


def test_the_content_of_two_folders_can_go_into_one() -> None:
    found = renamed(Listing(b"a/", b"a/x", b"b/", b"b/y"), "s/^[ab]/c/")
    assert [(each.order, each.source_path) for each in found] == [
        (b"c/", b"a"),
        (b"c/", b"b"),
        (b"c/x", b"a/x"),
        (b"c/y", b"b/y"),
    ]


def test_an_incomplete_listing_names_paths_of_the_source() -> None:
    listing = RenamedSource(cast("Store", cast("Any", Listing(b"a/x", fails=True))), ["s/a/b/"]).list()
    assert next(listing).path == b"b"
    assert next(listing).path == b"b/x"
    with pytest.raises(ListingIncompleteError) as raised:
        next(listing)
    assert [path for path, _ in raised.value.unlisted] == [b"a/closed"]
