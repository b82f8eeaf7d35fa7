"""Open one ssh session for several agents at a host: a second one may be refused, or ask for a code."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import select
import signal
import threading
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from hibali.config.model import Site
from hibali.locations import Location
from hibali.subprocesses import Process, ProcessStreams, widen_pipes
from transfers.remote import streams
from transfers.remote.streams import Session, Stream, StreamError

if TYPE_CHECKING:  # start-up: only for ssh
    from hibali.ssh.sessions import Login

_CHATTER = 1024 * 1024  # the limit for output of start-up files
_LOST = 255  # as ssh's exit code for its own errors
_PATIENCE = 1.0
_END_SECONDS = 5.0


@contextlib.contextmanager
def one_session() -> Iterator[None]:
    """Have all agents that are started in the block share one session at each host, which ends with the block."""
    if _sharing.get() is not None:
        yield
        return
    shared: list[AgentSession] = []
    _sharing.set(shared)
    try:
        yield
    finally:
        _sharing.set(None)
        for session in shared:
            session.release()


def one_session_at(*places: Location | None) -> AbstractContextManager[None]:
    """Do so if all places are at one site, whose agents pass no bulk data here."""
    return one_session() if len({place and place.site.name for place in places}) == 1 else nullcontext()


def kept_session(site: Site) -> AbstractContextManager[None]:
    """Do so at a site where each session is a login."""
    return one_session() if site.ssh is not None and not site.ssh.persist_seconds else nullcontext()


def start_in_session(login: Login, command: str) -> ProcessStreams | None:
    """Start a command over the session that this process has at the host; None if there is none."""
    with _OPENING:
        session = _sessions.get(login.key)
        return None if session is None else session.start(command)


def start_agent(login: Login, command: str) -> ProcessStreams:
    """Start a command at a host: over the session that this process has there, if each session is a login, or in `one_session`.

    A login that is kept is ready; the others are made here. Raises `NotFoundError` without ssh, and what `Login.ensure` does.
    """
    shared = _sharing.get()
    if not login.is_first or (login.shared and shared is None):
        if not login.shared:
            login.ensure()
        return Process(login.argv(command), foreground=login.asks)
    with _OPENING:
        session = _sessions.get(login.key)
        if session is None:
            if not login.shared:
                login.ensure()
            session = _sessions[login.key] = AgentSession(login, command)
        if shared is not None and session not in shared:
            shared.append(session.hold())
        return session.start(command)


_sharing: ContextVar[list[AgentSession] | None] = ContextVar("sessions that end with a block", default=None)
_OPENING = threading.RLock()
_sessions: dict[str, AgentSession] = {}


class AgentSession(Session):
    """One ssh session; it ends with its last agent, unless it is held."""

    def __init__(self, login: Login, command: str) -> None:
        """Start ssh, which also starts the first agent's command: it starts all others."""
        self._key = login.key
        self._process = Process(login.argv(command), foreground=login.asks)
        super().__init__(self._process.stdout, self._process.stdin)
        self._nonce = secrets.token_hex(16)
        self._numbers = count(1)
        self._agents: dict[int, RemoteAgent] = {}
        self._holders = 0
        self._is_ready = False
        self._ended: int | None = None
        self._receiver = threading.Thread(target=self._receive, name="session", daemon=True)
        with contextlib.suppress(OSError):  # the receiver finds out why
            self._process.stdin.write(_opening(self._nonce))

    def start(self, command: str) -> RemoteAgent:
        """Start an agent; where the session is lost, it ends with ssh's status."""
        number = next(self._numbers)
        agent = self._agents[number] = RemoteAgent(self, number)
        self.streams[number] = agent.stream
        with contextlib.suppress(OSError):
            self.send(streams.START, number, command.encode("utf-8"))
        if self._ended is not None:
            agent.note_end(self._ended, self._process.errors)
        elif self._receiver.ident is None:
            self._receiver.start()
        return agent

    def handle(self, kind: bytes, number: int, content: streams.Content) -> None:
        """See Session."""
        size = streams.STATUS.size
        if kind != streams.ENDED or len(content) < size:
            raise StreamError("unknown kind of frame")
        agent = self._agents.get(number)
        if agent is not None:
            agent.note_end(streams.STATUS.unpack(bytes(content[:size]))[0], bytes(content[size:]))

    def _receive(self) -> None:
        """Pass on what arrives, until the session ends."""
        with contextlib.suppress(OSError, ValueError, StreamError):
            if self._skip_chatter():
                self.receive_all()
        code = self._process.end(_PATIENCE)
        with _OPENING:
            self._forget()
            self._ended = code or _LOST
            for agent in self._agents.values():
                agent.note_end(self._ended, self._process.errors)

    def _skip_chatter(self) -> bool:
        """Return whether the host's end is ready; what is printed before is passed on as output of the first agent."""
        nonce, seen = self._nonce.encode("ascii"), bytearray()
        while not seen.endswith(nonce) and len(seen) < _CHATTER:
            chunk = self._process.stdout.read(1)
            if not chunk:
                break
            seen += chunk
        self._is_ready = seen.endswith(nonce)
        for agent in list(self._agents.values())[:1]:
            agent.stream.print(bytes(seen.removesuffix(nonce)))
        return self._is_ready

    def hold(self) -> AgentSession:
        """Keep the session until `release`."""
        self._holders += 1
        return self

    def release(self) -> None:
        """Allow it to end with its last agent."""
        self._holders -= 1
        self._end_unless_used()

    def leave(self, number: int) -> None:
        """Forget an agent that has ended."""
        with _OPENING:
            self._agents.pop(number, None)
            self.streams.pop(number, None)
        self._end_unless_used()

    def _end_unless_used(self) -> None:
        with _OPENING:
            if self._agents or self._holders:
                return
            self._forget()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._receiver.join(_END_SECONDS)
        if self._receiver.is_alive():
            self._process.kill()

    def _forget(self) -> None:
        if _sessions.get(self._key) is self:
            del _sessions[self._key]

    def kill(self, number: int) -> None:
        """Kill an agent, and all of them with ssh where the host cannot be told."""
        if self._is_ready and self.lock.acquire(timeout=_PATIENCE):
            try:
                if select.select([], [self._process.stdin], [], 0)[1]:
                    self.write(streams.KILL, number)
                    return
            except (OSError, ValueError):
                pass
            finally:
                self.lock.release()
        self._process.kill()


class RemoteAgent(ProcessStreams):
    """An agent of a session."""

    def __init__(self, session: AgentSession, number: int) -> None:
        """`number` is that of its stream."""
        self._session = session
        self._number = number
        self._end: tuple[int, bytes] | None = None
        self._has_ended = threading.Event()
        to_agent, self.stdin = _open_pipe()
        self.stdout, from_agent = _open_pipe()
        widen_pipes(self.stdin, self.stdout)
        self.stream = Stream(lambda kind, content: session.send(kind, number, content), to_agent, from_agent)

    @property
    def errors(self) -> bytes:
        """See ProcessStreams."""
        return self._end[1] if self._end else b""

    def note_end(self, status: int, errors: bytes) -> None:
        """Note that it has ended, or was killed."""
        self._end = self._end or (status, errors)
        self._has_ended.set()
        self.stream.end()

    def end(self, patience: float = 5.0) -> int:
        """See ProcessStreams."""
        with contextlib.suppress(OSError):
            self.stdin.close()
        if not self._has_ended.wait(patience):
            self.kill()
        self._session.leave(self._number)
        with contextlib.suppress(OSError):
            self.stdout.close()
        return self._end[0] if self._end else -signal.SIGKILL

    def kill(self) -> None:
        """See ProcessStreams."""
        self._session.kill(self._number)
        self.note_end(-signal.SIGKILL, b"")


def _open_pipe() -> tuple[BinaryIO, BinaryIO]:
    readable, writable = os.pipe()
    return cast("BinaryIO", os.fdopen(readable, "rb", 0)), cast("BinaryIO", os.fdopen(writable, "wb", 0))


def _opening(nonce: str) -> bytes:
    """Return the first input of the host's end."""
    packed = zlib.compress(f"{_source()}\nserve({nonce!r})\n".encode("ascii"), 9)
    return b"%08d" % len(packed) + packed


@functools.cache
def _source() -> str:
    return Path(streams.__file__).read_text("ascii")
