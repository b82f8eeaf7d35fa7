"""Test that agents which share one session neither block nor end each other."""

from __future__ import annotations

import os
import signal
import struct
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hibali.ssh.sessions import Login
from hibali.subprocesses import ProcessStreams
from tests.support.trees import random_bytes
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


class _Pipe:
    def __init__(self, content: bytes = b"") -> None:
        self._left = content

    def readinto(self, buffer: memoryview) -> int:
        """Read what is left."""
        piece, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)

    def read(self, _: int) -> bytes:
        """Return nothing."""
        return b""

    def close(self) -> None:
        """Do nothing."""

    def write(self, content: bytes) -> int:
        """Block for ever, as a pipe that nobody reads."""
        threading.Event().wait()
        return len(content)


def test_more_bytes_than_the_window_end_the_session() -> None:
    stream = Stream(lambda *_: None, cast("Any", _Pipe()), cast("Any", _Pipe()))
    stream.arrive(b"1")  # is being written
    with pytest.raises(StreamError):
        stream.arrive(bytes(WINDOW + 1))


def frame(kind: bytes, number: int, content: bytes) -> bytes:
    return struct.pack(">cII", kind, number, len(content)) + content


@pytest.mark.parametrize(
    "frames",
    [
        frame(b"?", 1, b""),
        struct.pack(">cII", streams.BYTES, 1, 2**31),
        frame(streams.START, 1, b"true") * 2,
        frame(streams.ENDED, 1, bytes(4)),
    ],
)
def test_hostile_frames_end_the_host_s_end(frames: bytes) -> None:
    session = streams.AgentsSession(cast("Any", _Pipe(frames)), cast("Any", SimpleNamespace(write=len)))
    with pytest.raises(StreamError):
        session.receive_all()


def test_bytes_for_agents_that_have_ended_are_dropped() -> None:
    content = frame(streams.BYTES, 9, b"x") + frame(streams.CLOSED, 9, b"") + frame(streams.KILL, 9, b"")
    streams.AgentsSession(cast("Any", _Pipe(content)), cast("Any", _Pipe())).receive_all()
