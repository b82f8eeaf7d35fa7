"""Test what a listing of keys reports about files that it cannot yield."""

from __future__ import annotations

import pytest

from transfers.model.rules import select_all
from transfers.model.units import ListingIncompleteError, of_target
from transfers.stores.server import keys
from transfers.stores.server.keys import Unlisted
from transfers.stores.server.manifest import Known


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_recorded_files_that_are_missing_are_no_problem_at_a_target_however_many(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MOST_UNLISTED", 2)
    unlisted = Unlisted("bucket")
    unlisted.add_missing((b"%d" % number, Known("", 1)) for number in range(count))
    with pytest.raises(ListingIncompleteError) as raised:
        unlisted.end()
    assert raised.value.selected(of_target) == []
    assert [entry.path for entry in raised.value.missing] == [b"0", b"1"][:count]
    of_source = raised.value.selected(select_all)
    assert [problem.code for _, problem in of_source] == ["missing"] * min(count, 2) + [
        "listing-incomplete"
    ] * (count > 2)
