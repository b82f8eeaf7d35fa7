"""Test that agents which share one session neither block nor end each other."""

from __future__ import annotations

import os
import shlex
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import Context
from pathlib import Path
from typing import Any, cast

import pytest

from hibali.cancellation import Cancellation, cancelled_by
from hibali.ssh.sessions import Login
from hibali.subprocesses import ProcessStreams
from tests.support.trees import random_bytes
from tests.support.waiting import wait_for
from transfers.remote import one_session, streams
from transfers.remote.connection import remote_command
from transfers.remote.streams import WINDOW, Stream, StreamError

MIB = 1024 * 1024


class Shell:
    """A login whose host is this machine: what ssh would run there, a shell runs here."""

    shared, is_first, asks, key = False, True, False, "far"

    def __init__(self, command: str | None = None) -> None:
        self.sessions = 0
        self._command = command

    def ensure(self) -> None:
        """Be ready."""

    def argv(self, _: str) -> list[str]:
        """Return what starts the host's end of the session."""
        self.sessions += 1
        return ["sh", "-c", self._command or remote_command("python3")]

    def start(self, command: str) -> ProcessStreams:
        """Start an agent, which here is any command."""
        return one_session.start_agent(cast("Login", self), command)


@pytest.fixture
def shell() -> Iterator[Shell]:
    yield Shell()
    assert one_session._sessions == {}


def write_all(agent: ProcessStreams, content: bytes) -> threading.Thread:
    def write() -> None:
        view = memoryview(content)
        while view:
            view = view[agent.stdin.write(view) :]
        agent.stdin.close()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def read_all(agent: ProcessStreams) -> bytes:
    content = b""
    while piece := agent.stdout.read(MIB):
        content += piece
    return content


def test_an_agent_that_nobody_reads_does_not_block_another(shell: Shell) -> None:
    """Windows bound what is held of the first one; the other's bytes come back as they were sent."""
    ignored, used = shell.start("cat"), shell.start("cat")
    blocked = write_all(ignored, bytes(4 * WINDOW))
    content = random_bytes(1, 3 * WINDOW + 12345)
    write_all(used, content)
    assert read_all(used) == content
    assert used.end() == 0
    assert blocked.is_alive()
    assert read_all(ignored) == bytes(4 * WINDOW)
    assert (ignored.end(), shell.sessions) == (0, 1)


def test_exit_status_and_errors_are_the_agent_s_own(shell: Shell) -> None:
    failing, other = shell.start("echo no >&2; echo out; exit 7"), shell.start("cat")
    assert read_all(failing) == b"out\n"
    assert (failing.end(), failing.errors) == (7, b"no\n")
    write_all(other, b"still here")
    assert read_all(other) == b"still here"
    assert (other.end(), other.errors) == (0, b"")


def test_a_killed_agent_leaves_the_others(shell: Shell) -> None:
    stuck, other = shell.start("echo ready; sleep 600"), shell.start("cat")
    assert stuck.stdout.read(100) == b"ready\n"
    stuck.kill()
    assert read_all(stuck) == b""
    assert stuck.end() == -signal.SIGKILL
    write_all(other, b"1")
    assert (read_all(other), other.end()) == (b"1", 0)


def test_agents_end_with_their_session_and_the_next_one_has_a_new_one(shell: Shell) -> None:
    first, second = shell.start("cat"), shell.start("echo $PPID; cat")
    host_end = int(second.stdout.read(100))
    os.kill(host_end, signal.SIGKILL)
    assert [read_all(first), read_all(second)] == [b"", b""]
    assert [first.end() != 0, second.end() != 0] == [True, True]
    third = shell.start("echo new")
    assert (read_all(third), third.end(), shell.sessions) == (b"new\n", 0, 2)


def test_a_session_ends_with_its_last_agent_or_with_the_block(shell: Shell) -> None:
    for _ in range(2):
        assert shell.start("true").end() == 0
    assert shell.sessions == 2
    with one_session.one_session():
        for _ in range(3):
            assert shell.start("true").end() == 0
        assert shell.sessions == 3


@pytest.mark.parametrize("command", ["echo no python; exit 127", "echo no python; exec sleep 0"])
def test_what_a_refusing_server_prints_is_the_first_agent_s_output(command: str) -> None:
    """Connection explains it; ssh itself would end with 255."""
    agent = Shell(command).start("cat")
    assert read_all(agent) == b"no python\n"
    assert agent.end() == (127 if "127" in command else 255)


class _Sink:
    """A pipe that nobody reads."""

    def readinto(self, _: memoryview) -> int:
        """Read nothing."""
        return 0

    def read(self, _: int) -> bytes:
        """Read nothing."""
        return b""

    def close(self) -> None:
        """Do nothing."""

    def write(self, content: bytes) -> int:
        """Block for ever."""
        threading.Event().wait()
        return len(content)


def test_more_bytes_than_the_window_end_the_session() -> None:
    stream = Stream(lambda *_: None, cast("Any", _Sink()), cast("Any", _Sink()))
    stream.arrive(b"1")  # is being written
    with pytest.raises(StreamError):
        stream.arrive(bytes(WINDOW + 1))


def frame(kind: bytes, number: int, content: bytes) -> bytes:
    return struct.pack(">cII", kind, number, len(content)) + content


HOSTILE = {
    "kind": frame(b"?", 1, b""),
    "length": struct.pack(">cII", streams.BYTES, 1, 2**31),
    "cut head": b"b\0\0",
    "cut": struct.pack(">cII", streams.READ, 1, 4) + b"\0",
    "count": frame(streams.READ, 1, b"\0\0\0"),
}


class HostEnd(streams.AgentsSession):
    """The host's end in this process, whose client sends these bytes and reads all."""

    def __init__(self, content: bytes) -> None:
        self.sent = b""
        readable, writable = os.pipe()
        with os.fdopen(writable, "wb") as client:
            client.write(content)
        with os.fdopen(readable, "rb", 0) as source:
            super().__init__(cast("Any", source), cast("Any", self))
            self.receive_all()

    def write(self, kind: Any, *more: Any) -> Any:
        """Take a frame, or its bytes."""
        if more:
            super().write(kind, *more)
            return None
        self.sent += bytes(kind)
        return len(kind)


@pytest.mark.parametrize("name", [*HOSTILE, "status"])
def test_a_hostile_client_ends_the_host_s_end(name: str) -> None:
    with pytest.raises(StreamError):
        HostEnd(HOSTILE.get(name, frame(streams.ENDED, 1, bytes(4))))


def test_bytes_for_agents_that_have_ended_are_dropped() -> None:
    HostEnd(frame(streams.BYTES, 9, b"x") + frame(streams.CLOSED, 9, b"") + frame(streams.KILL, 9, b""))


_HOSTILE_HOST = """
import os, re, sys, zlib
size, packed = int(os.read(0, 8)), b""
while len(packed) < size:
    packed += os.read(0, size - len(packed))
nonce = re.search(rb"serve\\('([0-9a-f]+)'\\)", zlib.decompress(packed))[1]
os.write(1, nonce + bytes.fromhex(sys.argv[1]))
"""


@pytest.mark.parametrize("name", [*HOSTILE, "a start", "short status", "bytes after the end"])
def test_a_hostile_host_ends_all_agents(name: str) -> None:
    """Their session is forgotten, and what is wrong is said."""
    more = {
        "a start": frame(streams.START, 1, b"true"),
        "short status": frame(streams.ENDED, 1, b""),
        "bytes after the end": frame(streams.CLOSED, 1, b"") * 3,
    }
    sent = HOSTILE.get(name) or more[name]
    agent = Shell(shlex.join([sys.executable, "-c", _HOSTILE_HOST, sent.hex()])).start("cat")
    assert read_all(agent) == b""
    assert (agent.end(), b"broke the protocol" in agent.errors) == (0, True)
    assert one_session._sessions == {}


def test_an_agent_too_many_is_refused_alone(shell: Shell) -> None:
    agents = [shell.start("cat") for _ in range(streams._MOST_AGENTS + 1)]
    assert read_all(agents[-1]) == b""
    assert (agents[-1].end(), b"too many agents" in agents[-1].errors) == (126, True)
    for agent in agents[:-1]:
        write_all(agent, b"1")
    assert [(read_all(agent), agent.end()) for agent in agents[:-1]] == [(b"1", 0)] * streams._MOST_AGENTS


def test_agents_that_end_leave_nothing_at_the_host_or_here(shell: Shell) -> None:
    with one_session.one_session():
        counting = "ls /proc/$PPID/task /proc/$PPID/fd | wc -l"
        counted = shell.start(counting)
        first = int(read_all(counted))
        counted.end()
        before = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(20):
            agent = shell.start("true" if number % 2 else "yes")
            if not number % 2:
                time.sleep(0.02)  # some more than the window
                agent.kill()
            agent.end()
        last = shell.start(counting)
        assert int(read_all(last)) <= first + 8
        last.end()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


def test_a_cancelled_call_ends_its_own_agents(shell: Shell) -> None:
    opened, other = [], shell.start("cat")
    cancellation = Cancellation()

    def call() -> None:
        with cancelled_by(cancellation):
            opened.append(shell.start("sleep 600"))

    Context().run(call)
    cancellation.cancel()
    assert read_all(opened[0]) == b""
    opened[0].end()
    write_all(other, b"1")
    assert (read_all(other), other.end()) == (b"1", 0)


def test_a_session_that_hangs_is_not_used_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_session, "_KILLED_SECONDS", 0.0)
    first, second = shell.start("echo $PPID; sleep 600"), shell.start("cat")
    host_end = int(first.stdout.read(100))
    os.kill(host_end, signal.SIGSTOP)
    try:
        first.kill()
        third = shell.start("echo new")
        assert (read_all(third), third.end(), shell.sessions) == (b"new\n", 0, 2)
    finally:
        os.kill(host_end, signal.SIGCONT)
    for agent in (first, second):
        agent.end()


def test_an_agent_that_is_left_cleans_up(shell: Shell, tmp_path: Path) -> None:
    """As behind a lost connection; only `kill` kills."""
    agent = shell.start(f"cat; sleep 0.3; echo done >{tmp_path}/done")
    agent.end(0.0)
    wait_for((tmp_path / "done").exists)
