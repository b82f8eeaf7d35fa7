"""One SFTP conversation over a pipe of ours: many requests under way, each answer given to who asked."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import BinaryIO

from hibali.errors import HibaliError, IncompleteError, TryLaterError
from hibali.login import Login
from hibali.shell import Process
from hibali.text import printable
from transfers import sftp_wire as wire

_LONGEST_PACKET = 1 << 20  # OpenSSH's own packets end at 256 KiB
_UNDER_WAY = 16 * 1024 * 1024  # bytes asked for or sent and not yet answered
_REQUESTS = 2048


class StatusError(Exception):
    """The server said no; `code` is one of the few words of version 3."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Pending:
    """One request under way."""

    def __init__(self, channel: Channel, weight: int) -> None:
        self._channel = channel
        self._done = threading.Event()
        self._answer: tuple[int, bytes] | None = None
        self.weight = weight

    def settle(self, kind: int, content: bytes) -> None:
        """The answer has come."""
        self._answer = (kind, content)
        self._done.set()

    def give_up(self) -> None:
        """No answer will come."""
        self._done.set()

    def answer(self, expected: int) -> wire.Reader:
        """Wait for the answer; raises `StatusError` for a no, and the channel's own error when it is gone."""
        self._done.wait()
        if self._answer is None:
            raise self._channel.gone()
        kind, content = self._answer
        reader = wire.Reader(content)
        if kind == wire.STATUS:
            code = reader.number()
            if code != wire.OK or expected != wire.STATUS:
                said = b"" if reader.done else reader.text()
                raise StatusError(code, printable(said)[:200])
        elif kind != expected:
            raise self._channel.broken(f"answered with a packet of type {kind}")
        return reader

    def wait(self) -> None:
        """Wait for a yes."""
        self.answer(wire.STATUS)


class Channel:
    """One server process at the other end of ssh. Any thread may ask."""

    def __init__(self, argv: Sequence[str], where: str, login: Login | None = None) -> None:
        """Start it; raises `TryLaterError`, `AccessError`, or `IncompleteError` where it is no SFTP server."""
        self.where = where
        self.login = login
        self._process = Process(argv)
        self._sending = threading.Lock()
        self._room = threading.Condition()
        self._pending: dict[int, Pending] = {}
        self._held = 0
        self._next = 0
        self._failure: HibaliError | None = None
        self._closed = False
        self.data_bytes = 0
        try:
            self.extensions = self._greet()
        except BaseException:
            self._process.kill()
            self._process.end()
            raise
        self._thread = threading.Thread(target=self._receive_all, name="sftp", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process that carries the conversation."""
        return self._process.pid

    def _greet(self) -> dict[bytes, bytes]:
        with contextlib.suppress(OSError):  # one that has ended already may have said why
            self._write(wire.init())
        try:
            kind, content = self._packet()
            if kind != wire.VERSION_ANSWER:
                raise wire.WireError("the first packet is no greeting")
            return wire.extensions_of(content)
        except (OSError, EOFError):
            raise self.gone() from None
        except wire.WireError as problem:
            raise self.broken(str(problem)) from None

    def ask(self, kind: int, content: bytes, data: bytes | memoryview = b"", *, weight: int = 0) -> Pending:
        """Send a request and go on; waits only while too much is under way. `data` ends the packet."""
        pending = Pending(self, max(weight, len(data)))
        with self._room:
            while self._failure is None and (
                len(self._pending) >= _REQUESTS or (self._held and self._held + pending.weight > _UNDER_WAY)
            ):
                self._room.wait()
            if self._failure is not None:
                raise self._failure
            self._next = (self._next + 1) & 0xFFFFFFFF
            identifier = self._next
            self._pending[identifier] = pending
            self._held += pending.weight
        header = wire.number(len(content) + len(data) + 5) + bytes([kind]) + wire.number(identifier) + content
        try:
            with self._sending:
                self._write(header)
                if data:
                    self._write(data)
        except (OSError, ValueError):
            raise self.gone() from None
        return pending

    def _write(self, content: bytes | memoryview) -> None:
        view = memoryview(content)
        while view:
            view = view[self._process.stdin.write(view) :]

    def _packet(self) -> tuple[int, bytes]:
        length = int.from_bytes(_exactly(self._process.stdout, 4), "big")
        if not 1 <= length <= _LONGEST_PACKET:
            raise wire.WireError("what came is no SFTP packet")
        content = _exactly(self._process.stdout, length)
        return content[0], content[1:]

    def _receive_all(self) -> None:
        """Runs in its own thread until the other end is gone."""
        try:
            while True:
                kind, content = self._packet()
                identifier = int.from_bytes(content[:4], "big")
                with self._room:
                    pending = self._pending.pop(identifier, None)
                    if pending is None:
                        raise wire.WireError("an answer came that nobody asked for")
                    self._held -= pending.weight
                    self._room.notify_all()
                pending.settle(kind, content[4:])
        except wire.WireError as problem:
            self._fail(self.broken(str(problem)))
        except (OSError, EOFError, ValueError):
            self._fail(None)

    def _fail(self, problem: HibaliError | None) -> None:
        """Let everybody who waits know."""
        if problem is None:
            problem = self._why()
        with self._room:
            self._failure = self._failure or problem
            left = list(self._pending.values())
            self._pending.clear()
            self._room.notify_all()
        for pending in left:
            pending.give_up()

    def gone(self) -> HibaliError:
        """Why there is no answer."""
        with self._room:
            if self._failure is not None:
                return self._failure
        return self._why()

    def _why(self) -> HibaliError:
        if self._closed:
            return TryLaterError("connection-lost", "the connection was closed", about=self.where)
        code = self._process.end(patience=2.0)
        errors = self._process.errors
        if self.login is not None and code == 255:
            return self.login.explain(errors)
        text = printable(errors.decode("utf-8", "replace").strip())[-300:]
        return TryLaterError(
            "connection-lost", f"the SFTP server ended: {text or f'status {code}'}", about=self.where
        )

    def broken(self, what: str) -> IncompleteError:
        """The error for a server that does not keep to the protocol."""
        return IncompleteError(
            "protocol",
            f"the SFTP server broke the protocol: {what}",
            about=self.where,
            hint="Nothing it said was believed.",
        )

    def close(self) -> None:
        """Leave; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._process.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
        with contextlib.suppress(HibaliError):
            self._fail(None)


def _exactly(stream: BinaryIO, length: int) -> bytes:
    """So many bytes; raises EOFError where the stream ends before."""
    first = stream.read(length)
    if not first:
        raise EOFError
    if len(first) == length:
        return first
    found = bytearray(first)
    while len(found) < length:
        chunk = stream.read(length - len(found))
        if not chunk:
            raise EOFError
        found += chunk
    return bytes(found)
