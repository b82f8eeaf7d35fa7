"""Implement SFTP version 3 over a pipe with many requests in flight (draft-ietf-secsh-filexfer-02)."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from hibali.errors import HibaliError, IncompleteError, TryLaterError
from hibali.request_log import is_logging, log_line
from hibali.retry import StallClock, stalled
from hibali.ssh.sessions import Login
from hibali.subprocesses import Process
from hibali.text import as_text, printable

VERSION = 3

INIT, VERSION_REPLY = 1, 2
OPEN, CLOSE, READ, WRITE = 3, 4, 5, 6
LSTAT, FSTAT, SETSTAT, FSETSTAT = 7, 8, 9, 10
OPENDIR, READDIR, REMOVE, MKDIR, RMDIR = 11, 12, 13, 14, 15
REALPATH, STAT, RENAME, READLINK, SYMLINK = 16, 17, 18, 19, 20
STATUS, HANDLE, DATA, NAME, ATTRS = 101, 102, 103, 104, 105
EXTENDED, EXTENDED_REPLY = 200, 201

OK, END_OF_FILE, NO_SUCH_FILE, PERMISSION_DENIED, FAILURE, BAD_MESSAGE = 0, 1, 2, 3, 4, 5
UNSUPPORTED = 8

FOR_READING, FOR_WRITING, CREATE, EXCLUSIVE = 0x01, 0x02, 0x08, 0x20

# requests whose content begins with paths, by the words of the protocol
_LOGGED = {
    OPEN: "OPEN",
    LSTAT: "LSTAT",
    SETSTAT: "SETSTAT",
    OPENDIR: "OPENDIR",
    REMOVE: "REMOVE",
    MKDIR: "MKDIR",
    RMDIR: "RMDIR",
    REALPATH: "REALPATH",
    STAT: "STAT",
    RENAME: "RENAME",
    READLINK: "READLINK",
    SYMLINK: "SYMLINK",
}
_RENAMING = (b"posix-rename@openssh.com", b"hardlink@openssh.com")

_SIZE, _OWNER, _PERMISSIONS, _TIMES, _EXTENDED = 0x01, 0x02, 0x04, 0x08, 0x80000000
_LATEST = 0xFFFFFFFF


class MalformedPacketError(Exception):
    """A packet that is not valid SFTP."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """File attributes; None if the server did not send them. The upper bits of `mode` are the file type."""

    size: int | None = None
    user: int | None = None
    mode: int | None = None
    seconds: int | None = None


class Reader:
    """A parser of one packet; raises `MalformedPacketError` if the packet ends early."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def read(self, length: int) -> bytes:
        """Return the next `length` bytes."""
        end = self._at + length
        if end > len(self._content):
            raise MalformedPacketError("a packet ends early")
        found = self._content[self._at : end]
        self._at = end
        return found

    def number(self) -> int:
        """Return a 32-bit number."""
        return int.from_bytes(self.read(4), "big")

    def large(self) -> int:
        """Return a 64-bit number."""
        return int.from_bytes(self.read(8), "big")

    def text(self) -> bytes:
        """Return a length-prefixed string."""
        return self.read(self.number())

    def attributes(self) -> Attributes:
        """Return the attributes of a file."""
        flags = self.number()
        size = self.large() if flags & _SIZE else None
        user = None
        if flags & _OWNER:
            user = self.number()
            self.number()
        mode = self.number() if flags & _PERMISSIONS else None
        seconds = None
        if flags & _TIMES:
            self.number()
            seconds = self.number()
        if flags & _EXTENDED:
            for _ in range(self.number()):
                self.text()
                self.text()
        return Attributes(size, user, mode, seconds)

    @property
    def done(self) -> bool:
        """Return whether the packet ends here."""
        return self._at >= len(self._content)


def number(value: int) -> bytes:
    """Encode a 32-bit number."""
    return value.to_bytes(4, "big")


def large(value: int) -> bytes:
    """Encode a 64-bit number."""
    return value.to_bytes(8, "big")


def text(value: bytes) -> bytes:
    """Encode a length-prefixed string."""
    return number(len(value)) + value


def attributes(*, mode: int | None = None, mtime_ns: int | None = None) -> bytes:
    """Encode attributes to set; times are 32-bit whole seconds, equal for access and change."""
    flags, content = 0, b""
    if mode is not None:
        flags |= _PERMISSIONS
        content += number(mode)
    if mtime_ns is not None:
        flags |= _TIMES
        content += number(whole_seconds(mtime_ns)) * 2
    return number(flags) + content


def whole_seconds(mtime_ns: int) -> int:
    """Return a time as whole seconds, limited to the protocol's range (1970 to 2106)."""
    return min(max(mtime_ns // 1_000_000_000, 0), _LATEST)


def init() -> bytes:
    """Return the first packet of a client."""
    return struct.pack(">IBI", 5, INIT, VERSION)


def extensions_of(content: bytes) -> dict[bytes, bytes]:
    """Return the extensions in the server's VERSION packet. Raise `MalformedPacketError` unless it is version 3."""
    reader = Reader(content)
    if reader.number() != VERSION:
        raise MalformedPacketError("the server does not use version 3 of SFTP")
    found: dict[bytes, bytes] = {}
    while not reader.done:
        name = reader.text()
        found[name] = reader.text()
    return found


_LONGEST_PACKET = 1 << 20  # OpenSSH's own packets end at 256 KiB
_UNDER_WAY = 16 * 1024 * 1024  # bytes requested or sent without a reply yet
_REQUESTS = 2048
_START_SECONDS = 90.0
_PERIODS = 10  # in which a missing reply is noticed
_END_SECONDS = 2.0
_OF_SSH = 255


class StatusError(Exception):
    """An error status from the server; `code` is one of version 3's few codes."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Pending:
    """A request that waits for its reply."""

    def __init__(self, channel: Channel, weight: int) -> None:
        self._channel = channel
        self._done = threading.Event()
        self._reply: tuple[int, bytes] | None = None
        self.weight = weight

    def settle(self, kind: int, content: bytes) -> None:
        """Store the reply."""
        self._reply = (kind, content)
        self._done.set()

    def cancel(self) -> None:
        """Mark that no reply will arrive."""
        self._done.set()

    def reply(self, expected: int) -> Reader:
        """Wait for the reply. Raise `StatusError` for an error status, the channel's error if it closed."""
        self._done.wait()
        if self._reply is None:
            raise self._channel.end_error()
        kind, content = self._reply
        reader = Reader(content)
        if kind == STATUS:
            code = reader.number()
            if code != OK or expected != STATUS:
                output = b"" if reader.done else reader.text()
                raise StatusError(code, printable(output)[:200])
        elif kind != expected:
            raise self._channel.broken(f"answered with a packet of type {kind}")
        return reader

    def wait(self) -> None:
        """Wait for the status OK."""
        self.reply(STATUS)


class Channel:
    """One SFTP server process behind ssh; thread-safe."""

    def __init__(
        self, argv: Sequence[str], subject: str, login: Login | None = None, stall: float = 0.0
    ) -> None:
        """Start ssh, which is ended after a request got no reply for `stall` seconds; 0: never.

        Raise `TryLaterError`, `AccessError`, or `IncompleteError` if it is no SFTP server.
        """
        self.subject = subject
        self.login = login
        self._process = Process(argv, foreground=login is not None and login.asks)
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._pending: dict[int, Pending] = {}
        self._held = 0
        self._next = 0
        self._failure: HibaliError | None = None
        self._closed = False
        self._head = b""  # the last packet's length, or the first bytes of a text
        self._ended = threading.Event()
        self.data_bytes = self._received = 0
        try:
            with self._process.limited(_START_SECONDS + (login.prompt_seconds if login else 0.0)):
                self.extensions = self._greet()
        except BaseException:
            self._process.kill()
            self._process.end()
            raise
        self._thread = threading.Thread(target=self._receive_all, name="sftp", daemon=True)
        self._thread.start()
        self._stall = stall
        if stall:
            threading.Thread(target=self._end_stalled, name="sftp replies", daemon=True).start()

    def _end_stalled(self) -> None:
        """End the connection after no reply for too long."""
        clock, period = StallClock(self._stall), self._stall / _PERIODS
        while not self._ended.wait(period):
            if clock.is_over(self._received if self._pending else None, period):
                self._fail(stalled(self._stall, self.subject))
                self._process.kill()
                return

    @property
    def ended(self) -> bool:
        """Whether no reply comes anymore."""
        return self._closed or self._ended.is_set()

    @property
    def pid(self) -> int:
        """The process id of ssh."""
        return self._process.pid

    def _greet(self) -> dict[bytes, bytes]:
        with contextlib.suppress(OSError):  # a process that has ended may have printed the reason
            self._write(init())
        try:
            kind, content = self._packet()
            if kind != VERSION_REPLY:
                raise MalformedPacketError("its first packet is not VERSION")
            return extensions_of(content)
        except (OSError, EOFError):
            raise self._refusal(b"") or self.end_error() from None
        except MalformedPacketError as problem:
            text = self._process.rest_of_output(_END_SECONDS)
            refused = None if text is None else self._refusal(self._head + text)
            raise refused or self.broken(str(problem)) from None

    def _refusal(self, text: bytes) -> HibaliError | None:
        """Return the error of a server that ended the session before it answered; None for ssh's own errors."""
        code = self._process.end(patience=_END_SECONDS)
        if self._process.late and self.login is not None and self.login.asks:
            return self.login.unanswered()
        if self._process.late:
            return TryLaterError(
                "no-answer",
                f"the SFTP server did not answer within {_START_SECONDS:.0f} s",
                subject=self.subject,
                hint="Check the load of the host, then run the same command again.",
            )
        if self.login is None or not 0 <= code < _OF_SSH:
            return None
        output = self._process.errors + text
        return self.login.explain_end(code, output or self.login.words_of_server(), self.subject)

    def request(
        self, kind: int, content: bytes, data: bytes | memoryview = b"", *, weight: int = 0
    ) -> Pending:
        """Send a request; wait only while too much is in flight. `data` ends the packet."""
        if is_logging():
            self._log(kind, content)
        pending = Pending(self, max(weight, len(data)))
        with self._changed:
            while self._failure is None and (
                len(self._pending) >= _REQUESTS or (self._held and self._held + pending.weight > _UNDER_WAY)
            ):
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            self._next = (self._next + 1) & 0xFFFFFFFF
            identifier = self._next
            self._pending[identifier] = pending
            self._held += pending.weight
        header = number(len(content) + len(data) + 5) + bytes([kind]) + number(identifier) + content
        try:
            with self._sending:
                self._write(header)
                if data:
                    self._write(data)
        except (OSError, ValueError):
            raise self.end_error() from None
        return pending

    def _log(self, kind: int, content: bytes) -> None:
        """Report a request that names paths, not those about open files."""
        reader, name = Reader(content), _LOGGED.get(kind, "")
        paths = [reader.text()]
        if kind == EXTENDED and paths[0] in _RENAMING:
            name = paths[0].decode("ascii")
            paths = [reader.text()]
        if kind in {RENAME, SYMLINK, EXTENDED} and name:
            paths.append(reader.text())
        if name:
            log_line("sftp", f"{self.subject} {name} {' '.join(as_text(path) for path in paths)}")

    def _write(self, content: bytes | memoryview) -> None:
        view = memoryview(content)
        while view:
            view = view[self._process.stdin.write(view) :]

    def _packet(self) -> tuple[int, bytes]:
        self._head = _exactly(self._process.stdout, 4)
        length = int.from_bytes(self._head, "big")
        if not 1 <= length <= _LONGEST_PACKET:
            raise MalformedPacketError("it sent data that is not an SFTP packet")
        content = _exactly(self._process.stdout, length)
        return content[0], content[1:]

    def _receive_all(self) -> None:
        """Receive replies until the connection closes; runs in its own thread."""
        try:
            while True:
                kind, content = self._packet()
                self._received += 1
                identifier = int.from_bytes(content[:4], "big")
                with self._changed:
                    pending = self._pending.pop(identifier, None)
                    if pending is None:
                        raise MalformedPacketError("it sent a reply to no request")
                    self._held -= pending.weight
                    self._changed.notify_all()
                pending.settle(kind, content[4:])
        except MalformedPacketError as problem:
            self._fail(self.broken(str(problem)))
        except (OSError, EOFError, ValueError):
            self._fail(None)

    def _fail(self, problem: HibaliError | None) -> None:
        """Fail all waiting requests."""
        if problem is None:
            problem = self._why()
        with self._changed:
            self._failure = self._failure or problem
            self._ended.set()
            unanswered = list(self._pending.values())
            self._pending.clear()
            self._changed.notify_all()
        for pending in unanswered:
            pending.cancel()

    def end_error(self) -> HibaliError:
        """Return the error that explains why there is no reply."""
        with self._changed:
            if self._failure is not None:
                return self._failure
        return self._why()

    def _why(self) -> HibaliError:
        if self._closed:
            return TryLaterError("connection-lost", "the connection was closed", subject=self.subject)
        code = self._process.end(patience=2.0)
        errors = self._process.errors
        if self.login is not None and code == _OF_SSH:
            return self.login.explain(errors)
        text = printable(errors.decode("utf-8", "replace").strip())[-300:]
        return TryLaterError(
            "connection-lost", f"the SFTP server ended: {text or f'status {code}'}", subject=self.subject
        )

    def broken(self, violation: str) -> IncompleteError:
        """Return the error for a server that violates the protocol."""
        return IncompleteError(
            "protocol",
            f"the SFTP server violated the protocol: {violation}",
            subject=self.subject,
            hint="Its reply was ignored. Check that the site's sshd starts an SFTP server.",
        )

    def close(self) -> None:
        """Close the channel; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._process.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
        with contextlib.suppress(HibaliError):
            self._fail(None)


def _exactly(stream: BinaryIO, length: int) -> bytes:
    """Read exactly `length` bytes. Raise EOFError if the stream ends before."""
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
