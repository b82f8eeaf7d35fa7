"""Test that every request of a compute node to a real object store takes its turn."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from typing import Any

import pytest

from hibali_plugins.nodes.objects import bucket_place
from hibali_plugins.nodes.program import bucket
from hibali_plugins.nodes.program.bucket import BucketSource, BucketTarget, Pace
from tests.end_to_end.test_request_limits import FILES, Faults, open_bucket
from tests.support.faulty_proxy import FaultyHttpProxy


class Counting(Pace):
    """Counts the turns that were taken."""

    def __init__(self) -> None:
        super().__init__(0)
        self.taken = 0.0

    def acquire(self, amount: float) -> None:
        self.taken += amount


def test_all_requests_of_a_node_take_a_turn(
    hibali: Any, proxy: FaultyHttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "_FIRST_PAUSE", 0.0)
    with closing(open_bucket(hibali)) as store:
        place = json.loads(json.dumps(bucket_place(store.requests, store.prefix)))
    before, pace = len(proxy.exchanges), Counting()
    contents = {name: content for name, content in FILES.items() if name.startswith(b"d/")}
    items = [
        {"number": number, "path": name.decode(), "size": len(content), "metadata": {}}
        for number, (name, content) in enumerate(contents.items())
    ]
    digests = [hashlib.sha256(content).hexdigest() for content in contents.values()]
    header = {"sizes": [item["size"] for item in items], "digests": digests, "problems": {}}
    target = BucketTarget({**place, "lock": "token"}, pace)
    written = target.write_pack({"unit": 1, "items": items}, header, b"".join(contents.values()))
    assert not [result["problem"] for result in written if result["problem"]]
    read = [
        {**item, "read": item["path"], "tag": result["etag"]}
        for item, result in zip(items, written, strict=True)
    ]
    source = BucketSource(place, pace)
    found, body = source.read_pack({"unit": 2, "items": read})
    assert (found["digests"], bytes(body)) == (digests, b"".join(contents.values()))
    target.close()
    source.close()
    assert isinstance(proxy.fault, Faults)
    assert len(proxy.fault.done) == 4
    assert pace.taken == len(proxy.exchanges) - before
