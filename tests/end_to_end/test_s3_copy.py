"""Test copies inside one object store: no data passes through this machine, known digests are kept, and no others are claimed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from hibali.config.settings import load_sites
from hibali.locations import read_location
from tests.support.backends import BucketBackend, add_site, make_backend
from tests.support.faulty_proxy import Exchange, FaultyHttpProxy
from tests.support.payloads import items_of, put
from tests.support.trees import sha256
from transfers.model.store import Origin
from transfers.model.units import Committed
from transfers.stores.open_store import open_store
from transfers.stores.s3 import copying
from transfers.stores.s3.copying import Copying
from transfers.stores.s3.store import S3Store

MIB = 1 << 20
LARGE = bytes(range(256)) * 4096 * 20 + b"end"
TREE = {b"a": b"1", b"d/b +%": b"22", "d/\u00e4".encode(): b"", b"large": LARGE}


@dataclass
class Buckets:
    """Two buckets of one server as the sites `one` and `two`, with hibali's command line."""

    hibali: Any
    one: Any
    two: Any

    def sync(self, source: str, target: str, *words: str, code: int = 0) -> Any:
        return self.hibali("sync", source, target, "--json", *words, exit=code)

    def open(self, location: str) -> S3Store:
        return open_store(read_location(location, load_sites(str(self.hibali.home.config))))  # type: ignore[return-value]


@pytest.fixture
def buckets(hibali: Any, tmp_path: Any, request: Any, monkeypatch: pytest.MonkeyPatch) -> Buckets:
    places = [make_backend("s3", tmp_path, request.getfixturevalue) for _ in range(2)]
    for name, place in zip(("one", "two"), places, strict=True):
        add_site(hibali.home.config, name, place)
    hibali.env.update(places[0].env)
    for name, value in places[0].env.items():
        monkeypatch.setenv(name, value)
    return Buckets(hibali, *places)


def fill(buckets: Buckets, tree: dict[bytes, bytes] = TREE) -> None:
    """Push files with hibali, so that digests, times and modes are recorded."""
    store = buckets.open("one:t")
    assert not [committed for committed in put(store, tree, mode=0o755) if committed.problem]
    store.close()


def test_a_copy_in_the_store_sends_nothing_and_keeps_the_records(buckets: Buckets) -> None:
    fill(buckets)
    receipt = buckets.sync("one:t", "two:deep/er").last
    assert (receipt["files_moved"], receipt["bytes_sent"], receipt["proof_moved"]) == (4, 0, "recorded")
    assert receipt["mover"] == "server"
    assert buckets.two.files("deep/er") == TREE
    known = [
        {e.path: (e.digest, e.mtime_ns, e.mode) for e in buckets.open(where).list()}
        for where in ("one:t", "two:deep/er")
    ]
    assert known[0] == known[1]
    assert known[1][b"large"][0] == sha256(LARGE)
    assert buckets.sync("one:t", "two:deep/er").last["files_moved"] == 0
    buckets.hibali("verify", "one:t", "two:deep/er", exit=0)


def test_one_object_is_copied_to_another_name_in_its_own_bucket(buckets: Buckets) -> None:
    fill(buckets, {b"a": b"1"})
    receipt = buckets.sync("one:t/a", "one:elsewhere/b").last
    assert (receipt["files_moved"], receipt["bytes_sent"]) == (1, 0)
    assert buckets.one.files("elsewhere") == {b"b": b"1"}


def test_a_required_digest_is_computed_by_reading_source_and_target(buckets: Buckets) -> None:
    fill(buckets, {b"a": b"1" * 1000})
    receipt = buckets.sync("one:t", "two:t", "--require-proof", "digest").last
    assert (receipt["proof_moved"], receipt["bytes_sent"]) == ("digest", 2000)


@pytest.mark.heavy
def test_a_copy_of_foreign_objects_has_the_verification_of_the_server(buckets: Buckets) -> None:
    buckets.one.plant("t", {b"a": b"1", b"d/b": b"2"})
    receipt = buckets.sync("one:t", "two:t").last
    assert (receipt["files_moved"], receipt["proof_moved"], receipt["bytes_sent"]) == (2, "claimed", 0)


def test_objects_that_the_server_does_not_copy_are_streamed_with_one_note(buckets: Buckets) -> None:
    fill(buckets, {b"%d" % number: b"content" for number in range(50)})

    def deny_copies(exchange: Exchange) -> None:
        exchange.deny = b"x-amz-copy-source" in exchange.head.lower()

    proxy = FaultyHttpProxy(urlsplit(buckets.two.endpoint).port or 0, deny_copies)
    config = buckets.hibali.home.config
    config.write_text(config.read_text().replace(buckets.two.endpoint, f"http://127.0.0.1:{proxy.port}"))
    answer = buckets.sync("one:t", "two:t")
    proxy.close()
    assert (answer.last["files_moved"], answer.last["bytes_sent"]) == (50, 2 * 50 * len(b"content"))
    assert answer.last["mover"] == "stream"
    notes = [line for line in answer.lines if line["kind"] == "noted" and "copy" in line["message"]]
    assert len(notes) == 1
    assert len(buckets.two.files("t")) == 50


def copied(buckets: Buckets, change: Callable[[], None] = lambda: None) -> tuple[list[Committed], S3Store]:
    """Return the copied objects of all listed ones, after a change."""
    source, target = buckets.open("one:t"), buckets.open("two:t")
    items = items_of(list(source.list()))
    change()
    lock = target.lock("test")
    try:
        return list(target.copy(Origin(source), items)), target
    finally:
        lock.release()


def test_a_source_that_changed_meanwhile_is_not_copied(buckets: Buckets) -> None:
    fill(buckets, {b"a": b"1", b"b": b"2"})
    committed, _ = copied(buckets, lambda: buckets.one.plant("t", {b"a": b"3"}))
    assert {one.item.entry.path: one.problem and one.problem.code for one in committed} == {
        b"a": "source-changed",
        b"b": None,
    }
    assert buckets.two.files("t") == {b"b": b"2"}


def test_a_saved_plan_replaces_only_the_planned_objects(buckets: Buckets) -> None:
    fill(buckets, {b"a": b"1", b"b": b"2"})
    buckets.two.plant("t", {b"a": b"old", b"b": b"old"})
    source, target = buckets.open("one:t"), buckets.open("two:t")
    there = {entry.path: entry for entry in target.list()}
    items = [item._replace(exact=True) for item in items_of(list(source.list()), there)]
    buckets.two.plant("t", {b"a": b"somebody's"})
    lock = target.lock("test")
    committed = list(target.copy(Origin(source), items))
    lock.release()
    codes = {one.item.entry.path: one.problem and one.problem.code for one in committed}
    assert codes == {b"a": "target-changed", b"b": None}
    assert buckets.two.files("t") == {b"a": b"somebody's", b"b": b"2"}


@pytest.fixture
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a limit of 16 MiB for one copy request."""
    monkeypatch.setattr(copying, "MOST_BYTES", 16 * MIB)
    monkeypatch.setattr(copying, "_PART_BYTES", 6 * MIB)


@pytest.mark.usefixtures("small_requests")
def test_a_large_object_is_copied_in_parts_and_resumed(
    buckets: Buckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(buckets, {b"large": LARGE})
    whole = Copying._part
    sent: list[int] = []

    def interrupted(self: Any, item: Any, upload: Any, begun: Any, size: int, number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt
        whole(self, item, upload, begun, size, number)
        sent.append(number)

    monkeypatch.setattr(Copying, "_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        copied(buckets)
    assert buckets.two.files("t") == {}
    assert sent
    again: list[int] = []

    def counted(self: Any, item: Any, upload: Any, begun: Any, size: int, number: int) -> None:
        existing = set(begun.parts)
        whole(self, item, upload, begun, size, number)
        again.extend({number} - existing)

    monkeypatch.setattr(Copying, "_part", counted)
    (committed,), target = copied(buckets)
    assert committed.problem is None
    assert committed.verification in {"recorded", "claimed"}, (
        "the ETag of a copy in parts depends on the server"
    )
    assert target.wire_bytes == 0
    assert 2 in again
    assert not set(again) & set(sent), "an existing part was copied again"
    assert buckets.two.files("t") == {b"large": LARGE}
    (entry,) = buckets.open("two:t").list()
    assert (entry.digest, entry.mode) == (sha256(LARGE), 0o755)
    assert buckets.two.unfinished("") == set()


@pytest.mark.usefixtures("small_requests")
def test_a_copy_in_parts_of_a_changed_source_leaves_nothing(buckets: Buckets) -> None:
    fill(buckets, {b"large": LARGE})
    (committed,), _ = copied(buckets, lambda: buckets.one.plant("t", {b"large": LARGE[1:]}))
    assert committed.problem is not None
    assert committed.problem.code == "source-changed"
    assert buckets.two.names("") <= {b"t/.hibali/lock"}
    assert buckets.two.unfinished("") == set()


def test_buckets_of_different_servers_are_not_copied_by_the_server(buckets: Buckets, tmp_path: Any) -> None:
    here = open_store(read_location(str(tmp_path), load_sites(str(buckets.hibali.home.config))))
    target = buckets.open("two:t")
    assert not target.copies(here)
    assert target.copies(buckets.open("one:t"))
    assert isinstance(target, S3Store)
    assert isinstance(buckets.one, BucketBackend)
