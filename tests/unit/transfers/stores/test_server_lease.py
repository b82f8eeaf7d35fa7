"""Test the rules of a lease at a server without an agent; the contract suites test each store's requests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from hibali.errors import TryLaterError
from tests.support.waiting import wait_for
from transfers.agent.lease import this_process
from transfers.stores.server import lease as server_lease
from transfers.stores.server.lease import Held, Lease

LEASE = 600  # seconds: no lease expires because this machine is busy


@dataclass
class Server:
    """A lock with the time of its last renewal."""

    record: dict[str, Any] = field(default_factory=dict)
    written: float = 0.0
    away: bool = False
    missed: int = 0  # requests while it was away

    def write(self, record: dict[str, Any]) -> None:
        self.record, self.written = record, time.monotonic()


class MemoryLease(Lease):
    def __init__(self, server: Server, seconds: int = LEASE) -> None:
        self.server = server
        super().__init__("lab", "push", seconds)

    def _create(self) -> bool:
        if not self.server.record:
            self.server.write(self._record)
        return self.server.record is self._record

    def _read(self) -> Held | None:
        if self.server.away:
            self.server.missed += 1
            raise TryLaterError("unreachable", "the server is away", subject="lab")
        record = self.server.record
        return Held(record, time.monotonic() - self.server.written) if record else None

    def _replace(self, found: Held) -> bool:
        if self.server.record is found.holder:
            self.server.write(self._record)
        return self.server.record is self._record

    def _renew(self) -> bool:
        if not self._is_held():
            return False
        self.server.write(self._record)
        return True

    def _remove(self) -> None:
        self.server.record = {}


def another(**more: Any) -> dict[str, Any]:
    return {
        **this_process(),
        "token": "another",
        "client": "ann@host pid 7",
        "operation": "sync",
        "lease": LEASE,
        **more,
    }


def test_an_active_holder_is_reported() -> None:
    server = Server()
    server.write(another())
    with pytest.raises(TryLaterError, match="locked by sync from ann@host pid 7") as refused:
        MemoryLease(server)
    assert refused.value.code == "locked"
    assert server.record["token"] == "another"


@pytest.mark.parametrize("dead", [another(start="1"), another(lease=1e-9)], ids=["process gone", "ran out"])
def test_the_lock_of_an_ended_holder_is_replaced(dead: dict[str, Any]) -> None:
    server = Server()
    server.write(dead)
    lease = MemoryLease(server)
    lease.check(now=True)
    lease.release()
    assert server.record == {}


def test_a_lock_taken_by_another_holder_is_lost_and_not_removed() -> None:
    server = Server()
    lease = MemoryLease(server)
    ours = server.record
    server.write(another())
    with pytest.raises(TryLaterError) as lost:
        lease.check(now=True)
    assert lost.value.code == "lease-lost"
    server.write(ours)
    with pytest.raises(TryLaterError):
        lease.check(now=True)
    server.write(another())
    lease.release()
    assert server.record["token"] == "another"


class Clock:
    """A monotonic clock that a test sets."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_a_lease_survives_a_short_outage_of_the_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(server_lease, "time", clock)
    monkeypatch.setattr(server_lease, "_RENEWALS", 100 * LEASE)  # one renewal each 10 ms
    server = Server()
    lease = MemoryLease(server)
    server.away = True
    wait_for(lambda: server.missed > 2)  # renewals that begin from now on fail
    began = clock.now

    def check_at(part: float) -> None:
        clock.now = lease._checked = began + part * LEASE  # as if the server had just been queried
        lease.check()

    check_at(0.25)
    check_at(0.74)
    with pytest.raises(TryLaterError) as lost:
        check_at(0.9)  # no other call can acquire it before
    assert lost.value.code == "lease-lost"
    lease.release()


def test_a_lease_is_renewed_while_held_and_released_once() -> None:
    server = Server()
    lease = MemoryLease(server, seconds=1)
    first = server.written
    wait_for(lambda: server.written > first)
    lease.release()
    with pytest.raises(TryLaterError):
        lease.check()
    server.write(another())
    lease.release()
    assert server.record["token"] == "another"


def test_a_lock_under_release_is_not_acquired_before_it_is_removed() -> None:
    """Its holder would otherwise remove the lock of the next holder."""

    class WatchedRemoval(MemoryLease):
        def _remove(self) -> None:
            with pytest.raises(TryLaterError) as refused:
                MemoryLease(self.server)
            assert refused.value.code == "locked"
            super()._remove()

    server = Server()
    WatchedRemoval(server).release()
    assert server.record == {}
    MemoryLease(server).release()
