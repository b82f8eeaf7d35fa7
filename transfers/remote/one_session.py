"""Open one ssh session for several agents at a host: a second one may be refused, or ask for a code."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import select
import signal
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, ContextVar
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from hibali.config.model import Site
from hibali.locations import Location
from hibali.subprocesses import Process, ProcessStreams, bind_to_call, widen_pipes
from transfers.remote import streams
from transfers.remote.streams import Session, Stream, StreamError

if TYPE_CHECKING:  # start-up: only for ssh
    from hibali.ssh.sessions import Login

_CHATTER = 1024 * 1024  # the limit for output of start-up files
_LOST = 255  # as ssh's exit code for its own errors
_PATIENCE = 1.0
_END_SECONDS = 5.0
_KILLED_SECONDS = 15.0  # in which the host reports the end of an agent that was killed


class _Sharing:
    """A block in which agents share sessions."""

    def __init__(self) -> None:
        self.sessions: list[AgentSession] = []
        self.has_ended = False  # threads of the block may go on


@contextlib.contextmanager
def one_session() -> Iterator[None]:
    """Have all agents that are started in the block share one session at each host, which ends with the block."""
    if _current_sharing() is not None:
        yield
        return
    sharing = _Sharing()
    _sharing.set(sharing)
    try:
        yield
    finally:
        _sharing.set(None)
        with _GUARD:
            sharing.has_ended = True
        for session in sharing.sessions:
            session.release()


def one_session_at(*places: Location | None) -> AbstractContextManager[None]:
    """Do so if all places are at one site, whose agents pass no bulk data here."""
    return one_session() if len({place and place.site.name for place in places}) == 1 else nullcontext()


def kept_session(site: Site) -> AbstractContextManager[None]:
    """Do so at a site where each session is a login."""
    return one_session() if site.ssh is not None and not site.ssh.persist_seconds else nullcontext()


def start_in_session(login: Login, command: str) -> ProcessStreams | None:
    """Start a command over the session that this process has at the host; None if there is none."""
    with _GUARD:
        session = _sessions.get(login.key)
    return None if session is None else session.start(command, None)


def start_agent(login: Login, command: str, *, alone: bool = False) -> ProcessStreams:
    """Start a command at a host: over the session that this process has there, if each session is a login, or in `one_session`.

    With `alone` it has a session of its own, except where that is a login. A login that is kept is ready; the others are made
    here. Raises `NotFoundError` without ssh, and what `Login.ensure` does.
    """
    sharing = _current_sharing()
    if not login.is_first or (login.shared and (alone or sharing is None)):
        if not login.shared:
            login.ensure()
        return Process(login.argv(command), foreground=login.asks)
    with _GUARD:
        opening = _opening_locks.setdefault(login.key, threading.Lock())
    with opening:  # it can take as long as a person does
        with _GUARD:
            session = _sessions.get(login.key)
        agent = session.start(command, sharing) if session is not None else None
        if agent is None:
            if not login.shared:
                login.ensure()
            session = AgentSession(login, command)
            agent = session.start(command, sharing)
            assert agent is not None
        return agent


def _current_sharing() -> _Sharing | None:
    sharing = _sharing.get()
    return None if sharing is None or sharing.has_ended else sharing


_sharing: ContextVar[_Sharing | None] = ContextVar("the block in which agents share sessions", default=None)
_GUARD = threading.RLock()  # never held for long
_opening_locks: dict[str, threading.Lock] = {}
_sessions: dict[str, AgentSession] = {}


class AgentSession(Session):
    """One ssh session; it ends with its last agent, unless it is held."""

    def __init__(self, login: Login, command: str) -> None:
        """Start ssh, which also starts the first agent's command: it starts all others.

        The call that opens it may be cancelled, or take too long, while others use it; each agent ends with its own call.
        """
        self._key = login.key
        self._process = Context().run(lambda: Process(login.argv(command), foreground=login.asks))
        super().__init__(self._process.stdout, self._process.stdin)
        self._nonce = secrets.token_hex(16)
        self._numbers = count(1)
        self._agents: dict[int, RemoteAgent] = {}
        self._holders = 0
        self._is_ready = self._is_over = False
        self._chatter = b""
        self._end: tuple[int, bytes] | None = None
        self._kills: list[int] = []  # to be sent
        self._killed: dict[int, float] = {}  # when agents were killed that have not ended
        with contextlib.suppress(OSError):  # the receiver finds out why
            self._process.stdin.write(_opening(self._nonce))
        self._receiver = threading.Thread(target=self._receive, name="session", daemon=True)
        self._receiver.start()
        threading.Thread(target=self._beat, name="session heartbeat", daemon=True).start()
        with _GUARD:
            _sessions[self._key] = self

    def start(self, command: str, sharing: _Sharing | None) -> RemoteAgent | None:
        """Start an agent, which ends with ssh's status if the session is lost; None if the session is over, or hangs."""
        with _GUARD:
            if self._is_over or self._hangs():
                self._forget()
                return None
            number = next(self._numbers)
            agent = self._agents[number] = RemoteAgent(self, number)
            self.streams[number] = agent.stream
            if sharing is not None and not sharing.has_ended and self not in sharing.sessions:
                sharing.sessions.append(self)
                self._holders += 1
            agent.stream.print(self._chatter)
            if self._end is not None:
                agent.note_end(*self._end)
        with contextlib.suppress(OSError, ValueError):
            self.send(streams.START, number, command.encode("utf-8"))
        return agent

    def _hangs(self) -> bool:
        """Return whether the host does not report the end of an agent that was killed."""
        return any(time.monotonic() - at > _KILLED_SECONDS for at in self._killed.values())

    def send(self, kind: bytes, number: int, content: streams.Content = b"") -> None:
        """See Session."""
        with self.lock:
            self.write(kind, number, content)
            self._send_kills()

    def _send_kills(self) -> None:
        while self._kills:
            self.write(streams.KILL, self._kills.pop())

    def handle(self, kind: bytes, number: int, content: streams.Content) -> None:
        """See Session."""
        size = streams.STATUS.size
        if kind != streams.ENDED or len(content) < size:
            raise StreamError("unknown kind of frame")
        with _GUARD:
            self._killed.pop(number, None)
            stream, agent = self.streams.pop(number, None), self._agents.get(number)
        if agent is not None:
            agent.note_end(streams.STATUS.unpack(bytes(content[:size]))[0], bytes(content[size:]))
        elif stream is not None:
            stream.end()

    def _receive(self) -> None:
        """Pass on what arrives, until the session ends."""
        broken = ""
        try:
            if self._skip_chatter():
                self.receive_all()
        except StreamError as problem:
            broken = f"the session's other end broke the protocol: {problem}"
        except (OSError, ValueError):
            pass
        finally:
            code = self._process.end(_PATIENCE)
            with _GUARD:
                self._forget()
                self._end = (0, broken.encode()) if broken else (code or _LOST, self._process.errors)
                agents, left = list(self._agents.values()), list(self.streams.values())
            for agent in agents:
                agent.note_end(*self._end)
            for stream in left:
                stream.end()

    def _skip_chatter(self) -> bool:
        """Return whether the host's end is ready; what is printed before is passed on as output of the first agent."""
        nonce, seen = self._nonce.encode("ascii"), bytearray()
        while not seen.endswith(nonce) and len(seen) < _CHATTER:
            chunk = self._process.stdout.read(1)
            if not chunk:
                break
            seen += chunk
        with _GUARD:
            self._is_ready = seen.endswith(nonce)
            said, agents = bytes(seen.removesuffix(nonce)), list(self._agents.values())
            self._chatter = b"" if agents or self._is_ready else said
        for agent in agents[:1]:
            agent.stream.print(said)
        return self._is_ready

    def _beat(self) -> None:
        """Send a frame from time to time, without which the host's end would end."""
        while True:
            self._receiver.join(streams.SILENCE_SECONDS / 4)
            if not self._receiver.is_alive():
                return
            with contextlib.suppress(OSError, ValueError):
                self.send(streams.READ, 0, bytes(4))

    def release(self) -> None:
        """End the hold of a block."""
        with _GUARD:
            self._holders -= 1
        self._end_unless_used()

    def leave(self, number: int) -> None:
        """Forget an agent; if it has not ended, its output is dropped until it does."""
        with _GUARD:
            agent = self._agents.pop(number, None)
            if agent is not None and agent.has_ended_there:
                self.streams.pop(number, None)
        self._end_unless_used()

    def _end_unless_used(self) -> None:
        with _GUARD:
            if self._agents or self._holders:
                return
            self._is_over = True
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
        """Kill an agent; before the session is ready also all others, because ssh itself may wait for an answer."""
        with _GUARD:
            is_ready = self._is_ready
            self._killed.setdefault(number, time.monotonic())
        if not is_ready:
            self._process.kill()
            return
        self._kills.append(number)
        if self.lock.acquire(timeout=_PATIENCE):  # else who writes now sends it
            try:
                if select.select([], [self._process.stdin], [], 0)[1]:
                    self._send_kills()
            except (OSError, ValueError):
                pass
            finally:
                self.lock.release()


class RemoteAgent(ProcessStreams):
    """An agent of a session."""

    def __init__(self, session: AgentSession, number: int) -> None:
        """`number` is that of its stream."""
        self._session = session
        self._number = number
        self._end: tuple[int, bytes] | None = None
        self._has_ended = threading.Event()
        self.has_ended_there = False
        to_agent, self.stdin = _open_pipe()
        self.stdout, from_agent = _open_pipe()
        widen_pipes(self.stdin, self.stdout)
        self.stream = Stream(lambda kind, content: session.send(kind, number, content), to_agent, from_agent)
        self._unbind = bind_to_call(self.kill)

    @property
    def errors(self) -> bytes:
        """See ProcessStreams."""
        return self._end[1] if self._end else b""

    def note_end(self, status: int, errors: bytes) -> None:
        """Note that it has ended there."""
        self.has_ended_there = True
        self._note(status, errors)

    def _note(self, status: int, errors: bytes) -> None:
        self._end = self._end or (status, errors)
        self._has_ended.set()
        self.stream.end()

    def end(self, patience: float = 5.0) -> int:
        """See ProcessStreams; it is left to end itself, as behind a connection that is lost."""
        self._unbind()
        with contextlib.suppress(OSError):
            self.stdin.close()
        self._has_ended.wait(patience)
        with contextlib.suppress(OSError):
            self.stdout.close()
        self._session.leave(self._number)
        return self._end[0] if self._end else -signal.SIGKILL

    def kill(self) -> None:
        """See ProcessStreams."""
        if not self._has_ended.is_set():
            self._session.kill(self._number)
            self._note(-signal.SIGKILL, b"")


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
