"""Test that every request to a real object store takes its turn, also when it is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import load_sites
from hibali.locations import read_location
from hibali.request_limits import RequestLimit
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
