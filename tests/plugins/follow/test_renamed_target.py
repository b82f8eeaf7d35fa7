"""Test that a followed folder notices that its target was renamed away."""

from __future__ import annotations

import pytest

from tests.end_to_end.conftest import MakeTransfers
from tests.end_to_end.test_renamed_folders import STORES, TREE, moved_away
from tests.plugins.follow.test_follow import Following


@pytest.mark.heavy
@pytest.mark.parametrize("word", STORES)
def test_a_followed_folder_notices_that_its_target_was_renamed_away(
    transfers_to: MakeTransfers, word: str
) -> None:
    place = transfers_to(word)
    place.make(TREE)
    following = Following(place)
    following.has(b"large", TREE[b"large"])
    moved_away(place.root, replace=True)()
    (place.source / "later").write_bytes(b"later")
    assert following.process.wait(60) == 5
    assert following.lines()[-1]["code"] == "lease-lost"
