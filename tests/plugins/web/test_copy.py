"""Test copies and renames inside one WebDAV server: what they verify, what they never replace, and failures in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hibali.config.settings import load_sites
from hibali.errors import RefusedError
from hibali.locations import Location, read_location
from tests.end_to_end.conftest import MakeTransfers
from tests.support.backends import dav_servers
from tests.support.faulty_proxy import Exchange, FaultyHttpProxy
from tests.support.payloads import items_of
from tests.support.transfers import Transfers, failed
from transfers.model.entry import Entry, Kind
from transfers.model.store import Origin, Store
from transfers.model.units import Committed
from transfers.stores.open_store import open_store

LARGE = bytes(range(256)) * 4096 * 9
TREE = {b"a": b"1", b"d/b +%": b"22", "d/ä".encode(): b"", b"large": LARGE}
SIZE = sum(map(len, TREE.values()))


@pytest.fixture(params=dav_servers())
def there(
    request: pytest.FixtureRequest, transfers_to: MakeTransfers, monkeypatch: pytest.MonkeyPatch
) -> Transfers:
    made = transfers_to(request.param)
    for name, value in made.place.env.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def faulty(there: Transfers) -> Iterator[Callable[[Callable[[Exchange], None]], None]]:
    """Return a function that puts a proxy with a given fault in front of the server."""
    made: list[FaultyHttpProxy] = []

    def start(fault: Callable[[Exchange], None]) -> None:
        endpoint: str = there.place.endpoint  # type: ignore[attr-defined]
        made.append(FaultyHttpProxy(int(endpoint.rpartition(":")[2]), fault))
        config = there.hibali.home.config
        config.write_text(config.read_text().replace(endpoint, f"dav://127.0.0.1:{made[-1].port}"))

    yield start
    for proxy in made:
        proxy.close()


def location(there: Transfers, path: str) -> Location:
    return read_location(f"there:{path}", load_sites(str(there.hibali.home.config)))


def copied(
    there: Transfers, change: Callable[[], None] = lambda: None, *, exact: bool = False
) -> dict[bytes, Committed]:
    """Copy `data/one` to `data/two`, with a change between the listing and the copy."""
    source, target = (open_store(location(there, f"data/{name}")) for name in ("one", "two"))
    there_now = {entry.path: entry for entry in target.list()} if target.stat() is not None else {}
    items = [item._replace(exact=exact) for item in items_of(files_of(source), there_now)]
    change()
    lock = target.lock("test", make=True)
    try:
        return {one.item.entry.path: one for one in target.copy(Origin(source), items)}
    finally:
        lock.release()
        target.close()
        source.close()


def files_of(store: Store) -> list[Entry]:
    return [entry for entry in store.list() if entry.kind is Kind.FILE]


def codes(committed: dict[bytes, Committed]) -> dict[bytes, str | None]:
    return {path: one.problem and one.problem.code for path, one in committed.items()}


def test_a_copy_is_read_back_and_keeps_the_records(there: Transfers) -> None:
    there.make(TREE)
    there.hibali("push", there.source, "there:data/one", exit=0)
    answer = there.hibali("cp", "there:data/one", "there:data/two", "--json", exit=0)
    receipt = answer.last
    assert (receipt["mover"], receipt["files_moved"]) == ("server", len(TREE))
    if there.place.word != "webdav-plain":  # which stores no digests, so that the source is read, too
        assert (receipt["proof_moved"], receipt["bytes_sent"]) == ("recorded", SIZE)
        one, two = (
            {e.path: (e.digest, e.mtime_ns, e.mode) for e in open_store(location(there, path)).list()}
            for path in ("data/one", "data/two")
        )
        assert one == two
        again = there.hibali("cp", "there:data/one", "there:data/two", "--json", exit=0).last
        assert (again["files_moved"], again["bytes_sent"]) == (0, 0)
    else:
        assert (receipt["proof_moved"], receipt["bytes_sent"]) == ("digest", 2 * SIZE)
    assert there.place.files("data/two") == TREE
    there.check_no_own_files()


def test_the_proof_of_a_copy_is_what_was_compared(there: Transfers) -> None:
    there.place.plant("data/one", {b"foreign": b"12345"})
    answer = there.hibali("cp", "there:data/one", "there:data/two", "--json", exit=0)
    assert (answer.last["proof_moved"], answer.last["bytes_sent"]) == ("digest", 10)
    config = there.hibali.home.config
    config.write_text(config.read_text().replace('kind = "url"', 'kind = "url"\nread_back = false'))
    answer = there.hibali("cp", "there:data/two", "there:data/three", "--json", exit=0)
    assert answer.last["proof_moved"] == "size"
    assert there.place.files("data/three") == {b"foreign": b"12345"}


def test_a_source_that_changed_meanwhile_is_not_copied(there: Transfers) -> None:
    there.place.plant("data/one", {b"a": b"1", b"b": b"2", b"c": b"3"})

    def change() -> None:
        there.place.plant("data/one", {b"a": b"another"})
        there.place.remove("data/one", b"c")

    found = codes(copied(there, change))
    assert found == {b"a": "source-changed", b"b": None, b"c": "vanished"}
    assert there.place.files("data/two") == {b"b": b"2"}
    assert not [name for name in there.place.names("data/two") if b".hibali-" in name]


def test_a_planned_copy_replaces_only_what_the_plan_saw(there: Transfers) -> None:
    there.place.plant("data/one", {b"a": b"1", b"b": b"2", b"c": b"3"})
    there.place.plant("data/two", {b"a": b"old", b"b": b"old"})

    def change() -> None:
        there.place.plant("data/two", {b"a": b"somebody's", b"c/precious": b"1"})

    found = codes(copied(there, change, exact=True))
    assert found == {b"a": "target-changed", b"b": None, b"c": "folder-in-the-way"}
    assert there.place.files("data/two") == {b"a": b"somebody's", b"b": b"2", b"c/precious": b"1"}


def test_a_copy_that_differs_never_gets_its_name(there: Transfers, faulty: Any) -> None:
    there.make({b"a": b"1" * 1000, b"b": b"2" * 1000})
    there.hibali("push", there.source, "there:data/one", exit=0)

    def spoil(exchange: Exchange) -> None:
        exchange.flip_answer = exchange.method == "GET" and b"hibali-" in exchange.target.encode()

    faulty(spoil)
    answer = there.hibali("cp", "there:data/one", "there:data/two", "--json", exit=6)
    assert set(failed(answer).values()) == {"not-copied"}
    assert there.place.files("data/two") == {}


def test_a_server_without_copy_is_refused_by_cp_and_streamed_by_sync(there: Transfers, faulty: Any) -> None:
    there.place.plant("data/one", {b"a": b"1", b"b": b"2"})

    def deny(exchange: Exchange) -> None:
        exchange.deny = exchange.method == "COPY"

    faulty(deny)
    answer = there.hibali("cp", "there:data/one", "there:data/two", "--json", exit=6)
    assert failed(answer) == {b"a": "not-copied", b"b": "not-copied"}
    assert there.place.files("data/two") == {}
    answer = there.hibali("sync", "there:data/one", "there:data/two", "--json", exit=0)
    assert (answer.last["mover"], answer.last["files_moved"]) == ("stream", 2)
    assert there.place.files("data/two") == {b"a": b"1", b"b": b"2"}


def test_lost_answers_are_repeated_without_harm(there: Transfers, faulty: Any) -> None:
    there.place.plant("data/one", {b"a": b"1", b"d/b": b"2"})
    seen: set[tuple[str, str]] = set()

    def lose(exchange: Exchange) -> None:
        key = (exchange.method, exchange.target)
        exchange.lose_answer = exchange.method in {"COPY", "MOVE"} and key not in seen
        seen.add(key)

    faulty(lose)
    there.hibali("cp", "there:data/one", "there:data/two", exit=0)
    there.hibali("mv", "there:data/one", "there:data/three", exit=0)
    there.hibali("mv", "there:data/two/a", "there:data/four", exit=0)
    assert there.there() == {b"two/d/b": b"2", b"three/a": b"1", b"three/d/b": b"2", b"four": b"1"}
    there.check_no_own_files()


def test_a_rename_replaces_nothing_and_moves_only_what_was_listed(there: Transfers) -> None:
    there.place.plant("data", {b"a": b"1", b"b": b"2"})
    store = open_store(location(there, "data"))
    entries = {entry.path: entry for entry in store.list()}
    lock = store.lock("test")
    try:
        there.place.plant("data", {b"a": b"changed"})
        for name, target, code in (("a", "new", "target-changed"), ("b", "a", "target-exists")):
            with pytest.raises(RefusedError) as caught:
                store.rename(entries[name.encode()], location(there, f"data/{target}"))
            assert caught.value.code == code
        store.rename(entries[b"b"], location(there, "data/deep/er/b"))
    finally:
        lock.release()
        store.close()
    assert there.there() == {b"a": b"changed", b"deep/er/b": b"2"}
