"""Test agents that make no progress behind a connection that lives, and slow ones that do."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hibali.errors import TryLaterError
from hibali.subprocesses import Process
from tests.support.slow_agents import HANGING, slow
from tests.support.waiting import wait_for
from transfers.remote.connection import BOOTSTRAP, Connection

STALL = 1.5
MIB = 1 << 20

Start = Callable[..., Connection]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Start]:
    opened: list[Connection] = []

    def start(call: str = "", change: str = "", stall: float = STALL) -> Connection:
        program = change.format(call) + BOOTSTRAP
        opened.append(Connection(Process([sys.executable, "-I", "-S", "-c", program]), "far", stall=stall))
        opened[-1].request("open", path=str(tmp_path), make=False)
        return opened[-1]

    (tmp_path / "large").write_bytes(bytes(6 * MIB))
    yield start
    for connection in opened:
        connection.close(0.1)


def digest(connection: Connection) -> str:
    connection.send(b"q", {"do": "digest", "paths": ["large"]})
    replies = list(connection.replies_to("digest"))
    return str(replies[0].header["digest"])


def fails_as_stalled(act: Callable[[], object]) -> None:
    with pytest.raises(TryLaterError, match="no progress for 2 s") as caught:
        act()
    assert (caught.value.code, caught.value.subject, caught.value.transient) == ("stalled", "far", True)


def test_a_slow_operation_that_proceeds_is_not_ended(agent: Start) -> None:
    """Seven reads take twice as long as one may."""
    assert len(digest(agent("read", slow(STALL / 3)))) == 64


def test_a_system_call_that_does_not_return_ends_the_connection(agent: Start) -> None:
    """The agent's process lives, and its other threads run: they must not hide a mount that hangs."""
    connection = agent("read", HANGING)
    fails_as_stalled(lambda: digest(connection))
    assert connection.lost


@pytest.mark.heavy
def test_an_agent_that_was_stopped_ends_the_connection_also_while_a_request_is_sent(agent: Start) -> None:
    connection = agent()
    os.kill(int(connection.process["pid"]), signal.SIGSTOP)
    fails_as_stalled(lambda: connection.request("put", path="/x", content="x" * 4 * MIB))


@pytest.mark.heavy
def test_an_agent_that_has_nothing_to_do_is_not_ended(agent: Start) -> None:
    connection = agent()
    received: list[str] = []
    waiting = threading.Thread(target=lambda: received.append(connection.receive().header["path"]))
    waiting.start()
    waiting.join(2 * STALL)
    assert waiting.is_alive()
    connection.send(b"q", {"do": "expand", "path": "/x"})
    waiting.join(20)
    assert received == ["/x"]


@pytest.mark.heavy
def test_a_program_may_run_for_its_own_time(agent: Start) -> None:
    words = ["sleep", str(2 * STALL)]
    reply = agent().request("run", words=words, timeout=60, stdin="", folder=None)
    assert reply.header["exit"] == 0


@pytest.mark.heavy
def test_without_a_limit_nothing_is_ended(agent: Start) -> None:
    connection = agent("read", slow(STALL / 6), stall=0.0)
    assert connection.reports == 0
    assert len(digest(connection)) == 64


@pytest.mark.heavy
def test_an_agent_that_cannot_be_killed_does_not_keep_the_command(
    agent: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in a system call on a mount that hangs ends only with the call."""
    monkeypatch.setattr("hibali.subprocesses._send_kill", lambda _: None)
    monkeypatch.setattr("hibali.subprocesses._KILL_SECONDS", 0.1)
    connection = agent("read", HANGING)
    pid = int(connection.process["pid"])
    fails_as_stalled(lambda: digest(connection))
    connection.close(0.1)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: connection._process._process.poll() is not None)
