"""Test that every request to a real object store takes its turn, whichever client sends it, also when it is repeated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hibali as api
from hibali.config.settings import load_sites
from hibali.locations import read_location
from hibali.request_limits import RequestLimit
from hibali_plugins.nodes.objects import bucket_place
from hibali_plugins.nodes.program import bucket
from hibali_plugins.nodes.program.bucket import BucketSource, BucketTarget, Pace
from tests.support.backends import add_site, make_backend
from tests.support.faulty_proxy import Exchange, FaultyHttpProxy
from tests.support.payloads import file_entry, items_of, payloads_of
from transfers.model.units import Item, Unit
from transfers.stores.open_store import open_store
from transfers.stores.s3.store import S3Store

MIB = 1 << 20
FILES = {
    **{f"d/{number}".encode(): b"%d" % number for number in range(20)},
    b"odd\x01": b"x",
    b"whole": bytes(6 * MIB),
}
LARGE = bytes(range(256)) * 4096 * 40


class Faults:
    """Refuses the first request of each method for one object, and loses the first answer for another."""

    def __init__(self) -> None:
        self.done: set[tuple[str, str]] = set()

    def __call__(self, exchange: Exchange) -> None:
        key = (exchange.method, exchange.target)
        if exchange.target.endswith(("/d/7", "/d/8")) and key not in self.done:
            self.done.add(key)
            exchange.refuse = exchange.target.endswith("7")
            exchange.lose_answer = not exchange.refuse


@pytest.fixture
def proxy(
    hibali: Any, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyHttpProxy]:
    """Make the site `bucket` with limits, behind a proxy that counts requests."""
    place = make_backend("s3", tmp_path, request.getfixturevalue)
    made = FaultyHttpProxy(int(place.endpoint.rpartition(":")[2]), Faults())
    add_site(hibali.home.config, "bucket", place)
    limits = "[sites.bucket.limits]\n"
    text = hibali.home.config.read_text().replace(place.endpoint, f"http://127.0.0.1:{made.port}")
    assert limits in text
    hibali.home.config.write_text(text.replace(limits, f"{limits}requests = 1000000\nconnections = 4\n"))
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that has an entry for each turn that was taken."""
    taken: list[None] = []
    take = RequestLimit._take_turn

    def count(self: RequestLimit) -> float:
        taken.append(None)
        return take(self)

    monkeypatch.setattr(RequestLimit, "_take_turn", count)
    return taken


def open_bucket(hibali: Any) -> S3Store:
    store = open_store(read_location("bucket:t", load_sites(str(hibali.home.config))))
    assert isinstance(store, S3Store)
    return store


def test_all_requests_of_a_store_take_a_turn(hibali: Any, proxy: FaultyHttpProxy, turns: list[None]) -> None:
    contents = {**FILES, b"large": LARGE}
    items = items_of([file_entry(name, content) for name, content in sorted(contents.items())])
    with closing(open_bucket(hibali)) as store:
        lock = store.lock("push", make=True)
        written = store.write(payloads_of(items, contents, 16 * MIB))
        assert not [done.problem for done in written if done.problem]
        listed = list(store.list())
        units = [Unit((Item(number, entry),)) for number, entry in enumerate(listed)]
        assert [bytes(payload.data) for payload in store.read(units)] == [
            contents[one.path] for one in listed
        ]
        assert not [problem for _, problem in store.remove(listed) if problem]
        lock.release()
    assert isinstance(proxy.fault, Faults)
    assert {method for method, _ in proxy.fault.done} == {"PUT", "GET", "HEAD"}
    assert len(turns) == len(proxy.exchanges)


def test_a_file_that_python_opens_takes_a_turn_for_each_request(
    hibali: Any, proxy: FaultyHttpProxy, turns: list[None]
) -> None:
    config = hibali.home.config
    with api.open("bucket:t/d/7", "wb", config=config) as file:
        file.write(LARGE)
    with api.open("bucket:t/d/7", config=config) as file:
        file.seek(5 * MIB + 7)
        assert file.read(9) == LARGE[7:16]
    assert len(turns) == len(proxy.exchanges)


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
