"""Test broken connections, busy servers and flipped bytes: hibali retries, then reports, and never accepts wrong data."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.faulty_proxy import CuttingProxy, Exchange, FaultyHttpProxy
from tests.support.transfers import Transfers, counts, failed
from tests.support.trees import many_files, read_tree

LARGE = random.Random(3).randbytes(1_000_001) * 20  # noqa: S311 - the same ones each time
MANY = LARGE * 2  # larger than a single request
TREE = {**many_files(120, 20_000), b"large": LARGE}

Fault = Callable[[Exchange], None]


@pytest.fixture
def faulty(transfers_to: Any) -> Iterator[Callable[[Fault], tuple[Transfers, FaultyHttpProxy]]]:
    """Return a function that makes an S3 site behind a proxy with a given fault."""
    proxies: list[FaultyHttpProxy] = []

    def make(fault: Fault) -> tuple[Transfers, FaultyHttpProxy]:
        there = transfers_to("s3")
        port = int(there.place.endpoint.rpartition(":")[2])
        proxy = FaultyHttpProxy(port, fault)
        proxies.append(proxy)
        config = there.hibali.home.config
        config.write_text(config.read_text().replace(there.place.endpoint, f"http://127.0.0.1:{proxy.port}"))
        return there, proxy

    yield make
    for proxy in proxies:
        proxy.close()


def is_data(exchange: Exchange) -> bool:
    """Return whether it is an object of the user and not one of hibali."""
    return ".hibali" not in exchange.target and "/data/" in exchange.target


class Once:
    """A fault for the first `times` exchanges of each target that `wanted` selects; counts its uses."""

    def __init__(self, wanted: Callable[[Exchange], bool], name: str, times: int = 1) -> None:
        self._wanted = wanted
        self._name = name
        self._times = times
        self._seen: dict[tuple[str, str], int] = {}
        self.done = 0

    def __call__(self, exchange: Exchange) -> None:
        if not self._wanted(exchange):
            return
        key = (exchange.method, exchange.target)
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] <= self._times:
            self.done += 1
            setattr(exchange, self._name, True)


def test_the_proxy_without_a_fault_changes_nothing(faulty: Any, tmp_path: Path) -> None:
    there, proxy = faulty(lambda _: None)
    there.make(TREE)
    assert counts(there.push())["files_moved"] == len(TREE)
    there.pull(tmp_path / "back")
    assert read_tree(tmp_path / "back") == TREE
    assert len(proxy.exchanges) > len(TREE)


@pytest.mark.heavy
def test_requests_to_a_busy_server_are_retried(faulty: Any, tmp_path: Path) -> None:
    chance = random.Random(4)  # noqa: S311 - the same requests each time
    fault = Once(lambda _: chance.random() < 0.15, "refuse")
    there, _ = faulty(fault)
    there.make(TREE)
    assert counts(there.push())["files_moved"] == len(TREE)
    assert there.there() == TREE
    there.pull(tmp_path / "back")
    assert read_tree(tmp_path / "back") == TREE
    assert fault.done > 5


@pytest.mark.heavy
def test_a_server_that_stays_busy_is_5_after_a_bounded_time(faulty: Any) -> None:
    def always(exchange: Exchange) -> None:
        exchange.refuse = True

    there, proxy = faulty(always)
    there.make({b"a": b"1"})
    began = time.monotonic()
    answer = there.push(exit=5)
    assert time.monotonic() - began < 60
    assert answer.last["transient"]
    assert len(proxy.exchanges) < 40


@pytest.mark.heavy
def test_an_object_that_the_server_lost_needs_few_requests(faulty: Any, tmp_path: Path) -> None:
    """Check that retries in hibali and in libraries share one budget (docs/decisions/connections.md)."""

    def lost(exchange: Exchange) -> None:
        exchange.fail = exchange.method == "GET" and exchange.target.endswith("/data/lost")

    there, proxy = faulty(lost)
    there.make({b"lost": b"1", b"whole": b"2"})
    there.push()
    answer = there.pull(tmp_path / "back", exit=6)
    assert failed(answer) == {b"lost": "server-failed"}
    assert read_tree(tmp_path / "back") == {b"whole": b"2"}
    assert sum(exchange.fail for exchange in proxy.exchanges) <= 5


@pytest.mark.heavy
def test_an_unreachable_server_needs_few_requests(faulty: Any, tmp_path: Path) -> None:
    """Check that later requests, such as the release of the lock, do not wait for the same failure again."""
    there, proxy = faulty(lambda _: None)
    there.make(many_files(3, 100))
    there.push()
    before = len(proxy.exchanges)
    proxy.fault = lambda exchange: setattr(exchange, "lose_answer", True)
    assert there.pull(tmp_path / "back", exit=5).last["code"] == "unreachable"
    assert len(proxy.exchanges) - before <= 10


@pytest.mark.parametrize("name", [pytest.param("lose_answer", marks=pytest.mark.heavy), "flip_request"])
def test_data_damaged_during_an_upload_is_sent_again(faulty: Any, name: str) -> None:
    fault = Once(lambda exchange: exchange.method == "PUT" and is_data(exchange), name)
    there, _ = faulty(fault)
    tree = {**many_files(30, 20_000), b"large": LARGE, b"in parts": MANY}
    there.make(tree)
    assert counts(there.push())["files_moved"] == len(tree)
    assert there.there() == tree
    assert fault.done >= len(tree)
    assert counts(there.push())["files_moved"] == 0


@pytest.mark.parametrize("name", ["lose_answer", "fail_inside"])
def test_a_completion_of_a_large_file_that_fails_is_repeated(faulty: Any, name: str) -> None:
    """Check a server that has assembled the parts while its answer is lost, and one whose success contains an error."""
    fault = Once(lambda exchange: exchange.method == "POST" and "uploadId" in exchange.target, name)
    there, _ = faulty(fault)
    there.make({b"large": MANY})
    there.push()
    assert fault.done == 1
    assert there.there() == {b"large": MANY}


@pytest.mark.heavy
def test_bytes_that_always_flip_during_an_upload_are_6_and_named(faulty: Any) -> None:
    def flip(exchange: Exchange) -> None:
        exchange.flip_request = exchange.method == "PUT" and exchange.target.endswith("/data/bad")

    there, proxy = faulty(flip)
    there.make({b"bad": b"flip me, please", b"good": b"1"})
    answer = there.push(exit=6)
    assert there.there() == {b"good": b"1"}
    assert b"bad" in answer.err
    assert sum(exchange.flip_request for exchange in proxy.exchanges) < 30, "a bounded number of times"


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["cut_answer", "flip_answer", "refuse"])
def test_data_damaged_during_a_download_is_requested_again(faulty: Any, tmp_path: Path, name: str) -> None:
    fault = Once(lambda exchange: exchange.method == "GET" and is_data(exchange), name)
    there, _ = faulty(fault)
    tree = {**many_files(30, 20_000), b"large": LARGE}
    there.make(tree)
    there.push()
    there.pull(tmp_path / "back")
    assert read_tree(tmp_path / "back") == tree
    assert fault.done >= len(tree)


def test_bytes_that_always_flip_during_a_download_are_6_and_never_under_a_final_name(
    faulty: Any, tmp_path: Path
) -> None:
    def flip(exchange: Exchange) -> None:
        exchange.flip_answer = exchange.method == "GET" and exchange.target.partition("?")[0].endswith("/bad")

    there, _ = faulty(flip)
    there.make({b"bad": b"flip me, please", b"good": b"1", b"sub/bad": LARGE})
    there.push()
    answer = there.pull(tmp_path / "back", exit=6)
    assert read_tree(tmp_path / "back") == {b"good": b"1"} or read_tree(tmp_path / "back").keys() == {
        b"good",
        b"sub",
    }
    assert b"bad" in answer.err


@pytest.mark.heavy
def test_an_incomplete_listing_deletes_nothing(faulty: Any, tmp_path: Path) -> None:
    """Check that a source listing that always breaks off deletes nothing with `--delete`."""
    active = [False]

    def fault(exchange: Exchange) -> None:
        if active[0] and "list-type" in exchange.target:
            exchange.cut_answer = True

    there, _ = faulty(fault)
    there.make({b"a": b"1", b"b": b"2"})
    there.push()
    there.pull(tmp_path / "back")
    (tmp_path / "back" / "extra").write_bytes(b"3")
    active[0] = True
    answer = there.hibali(
        "pull", "there:data", tmp_path / "back", "--delete", "--max-delete", "100%", "--json"
    )
    assert answer.exit in {5, 6}, str(answer)
    assert read_tree(tmp_path / "back") == {b"a": b"1", b"b": b"2", b"extra": b"3"}


@pytest.mark.parametrize("cut_after", [100_000, 6_000_000])
def test_a_cut_connection_to_an_ssh_site_is_5_and_the_same_command_resumes(
    transfers_to: Any, cut_after: int
) -> None:
    there = transfers_to("ssh")
    proxy = CuttingProxy(there.place.server.port, cut_after)
    config = there.hibali.home.config
    words = f'"-F", "{there.place.server.config}"'
    through = f'"-o", "Port={proxy.port}", "-o", "HostKeyAlias={there.place.server.host}"'
    config.write_text(config.read_text().replace(words, f"{words}, {through}"))
    try:
        there.make(TREE)
        answer = there.push(exit=5)
        assert answer.last["transient"] or answer.last["code"] == "locked"
        assert there.committed_files().items() <= TREE.items()
        proxy.cut_after = None
        deadline = time.monotonic() + 30
        while (again := there.hibali("push", there.source, "there:data", "--json")).exit == 5:
            assert again.last["code"] == "locked", str(again)
            assert time.monotonic() < deadline
        assert again.exit == 0, str(again)
        assert there.there() == TREE
        there.check_no_own_files()
    finally:
        proxy.close()
