"""Test that several sources keep the errors of the listing that contains them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from transfers.model.entry import Entry, Kind
from transfers.model.store import Store
from transfers.model.units import ListingIncompleteError, Problem
from transfers.stores.single_file import GatheredSource


class Listing:
    """The listing of a store that ends with an error about one path."""

    def __init__(self, unlisted: bytes) -> None:
        self._unlisted = unlisted

    def list(self) -> Iterator[Entry]:
        yield Entry(b"p/one/a", Kind.FILE)
        raise ListingIncompleteError("here", [(self._unlisted, Problem("denied", "permission denied"))])


@pytest.mark.parametrize(
    ("unlisted", "shown"), [(b"", b""), (b"q", b""), (b"q/two/x", b"two/x"), (b"other", None), (b"q/t", None)]
)
def test_an_error_above_a_member_is_kept(unlisted: bytes, shown: bytes | None) -> None:
    members = {b"one": b"p/one", b"two": b"q/two"}
    listing = GatheredSource(cast("Store", cast("Any", Listing(unlisted))), members).list()
    assert next(listing).path == b"one/a"
    if shown is None:
        assert next(listing, None) is None
        return
    with pytest.raises(ListingIncompleteError) as raised:
        next(listing)
    assert [path for path, _ in raised.value.unlisted] == [shown]
