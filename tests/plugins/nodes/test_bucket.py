"""Test what a compute node does with an object store that it cannot reach."""

from __future__ import annotations

from typing import Any

import pytest

from hibali.http.errors import BUSY
from hibali_plugins.nodes.objects import bucket_place
from hibali_plugins.nodes.program import bucket
from hibali_plugins.nodes.program.bucket import BucketSource, BucketTarget, Pace, UnreachableError
from tests.services.processes import free_port


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setattr(bucket, "_FIRST_PAUSE", 0.0)
    return {"url": f"http://127.0.0.1:{free_port()}", "bucket": "b", "prefix": "", "region": "us-east-1"}


def test_a_store_that_does_not_answer_ends_the_shard_and_not_each_file(place: dict[str, object]) -> None:
    item = {"number": 1, "path": "a", "read": "a", "tag": "", "size": 3, "metadata": {}}
    unit = {"unit": 1, "items": [item]}
    header = {"sizes": [3], "digests": ["00" * 32], "problems": {}}
    with pytest.raises(UnreachableError, match="cannot reach the object store"):
        BucketTarget(place, Pace(0)).write_pack(unit, header, b"abc")
    with pytest.raises(UnreachableError):
        BucketSource(place, Pace(0)).read_pack(unit)


def test_keys_that_have_ended_end_the_shard(place: dict[str, object]) -> None:
    place |= {"access_key": "AKID", "keys": {"20200101": "00" * 32}}
    with pytest.raises(UnreachableError) as caught:
        BucketSource(place, Pace(0)).read_pack(
            {"unit": 1, "items": [{"number": 1, "read": "a", "tag": "", "size": 3}]}
        )
    assert caught.value.code == "keys-ended"


@pytest.mark.parametrize("pays", [True, False])
def test_a_node_is_told_whether_the_requester_pays(open_scripted: Any, command: Any, *, pays: bool) -> None:
    words, _ = command
    store = open_scripted(credentials_command=tuple(words), request_payer="requester" if pays else None)
    assert bucket_place(store.requests, b"")["pays"] is pays


def test_a_node_sends_requests_again_after_the_same_statuses_as_hibali() -> None:
    assert bucket._LATER == BUSY  # the node can import nothing of hibali
