"""Test sessions that are lent to stores: given back only if nothing is left unanswered, else closed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hibali.config.model import Site, SshSettings
from hibali.subprocesses import Process
from tests.support.trees import make_tree, many_files
from transfers.model.entry import Kind
from transfers.model.units import Item
from transfers.pipeline.batches import group_units
from transfers.remote.agent_host import AgentHost
from transfers.remote.connection import Connection, local_command
from transfers.remote.lending import borrow, lend
from transfers.stores.agent_store import PosixStore
from transfers.stores.ssh import FACTS

SITE = Site("far", "ssh", ssh=SshSettings(host="login"))


def connect() -> Connection:
    return Connection(Process(local_command(sys.executable)), "far")


@pytest.fixture
def host() -> Iterator[AgentHost]:
    with closing(AgentHost(connect(), SITE, connect)) as made:
        yield made


def borrowed_store(folder: Path) -> PosixStore:
    connection = borrow(SITE, Connection, bulk=True)
    assert connection is not None
    connection.post("inspect", path=str(folder))
    return PosixStore(connection, FACTS)


def process_of(host: AgentHost) -> str:
    return host.run([b"sh", b"-c", b"echo $PPID"], timeout=10).stdout.decode()


def test_a_store_that_ends_well_gives_the_session_back(host: AgentHost, tmp_path: Path) -> None:
    make_tree(tmp_path / "t", many_files(30, 10))
    before = process_of(host)
    for _ in range(2):
        with host.lending():
            store = borrowed_store(tmp_path / "t")
            assert borrow(SITE, Connection, bulk=True) is None
            assert len([entry for entry in store.list() if entry.kind is Kind.FILE]) == 30
            lock = store.lock("push")
            lock.finish()
            store.close()
            store.close()
    assert process_of(host) == before


def test_a_store_in_the_middle_of_an_answer_ends_the_session(host: AgentHost, tmp_path: Path) -> None:
    make_tree(tmp_path / "t", many_files(30, 10))
    before = process_of(host)
    with host.lending():
        store = borrowed_store(tmp_path / "t")
        store.list_ahead()
        store.close()
        assert borrow(SITE, Connection, bulk=True) is None
    assert process_of(host) != before


def test_a_store_that_is_never_closed_ends_the_session(host: AgentHost, tmp_path: Path) -> None:
    before = process_of(host)
    with host.lending():
        borrowed_store(tmp_path)
    assert process_of(host) != before


def test_each_store_counts_its_own_bytes(host: AgentHost, tmp_path: Path) -> None:
    make_tree(tmp_path / "t", {b"a": b"1" * 1000})
    for _ in range(2):
        with host.lending(), closing(borrowed_store(tmp_path / "t")) as store:
            [entry] = store.list()
            [payload] = store.read(group_units([Item(0, entry)], lambda: 1 << 20))
            assert len(payload.data) == 1000
        assert (store.wire_bytes, store.logins, store.reconnects) == (1000, 0, 0)


def test_nothing_is_lent_to_another_site_or_host() -> None:
    with closing(connect()) as connection, lend(SITE, connection, bulk=False):
        for other in (
            Site("near", "ssh", ssh=SshSettings(host="login")),
            Site("far", "ssh", ssh=SshSettings(host="login", data_host="dtn")),
        ):
            assert borrow(other, Connection, bulk=True) is None
        assert borrow(SITE, Connection, bulk=True) is connection
        connection.borrowed = False
    assert borrow(SITE, Connection, bulk=True) is None
