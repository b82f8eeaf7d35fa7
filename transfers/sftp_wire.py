"""The packets of SFTP version 3 (draft-ietf-secsh-filexfer-02), as bytes and as values."""

from __future__ import annotations

import struct
from dataclasses import dataclass

VERSION = 3

INIT, VERSION_ANSWER = 1, 2
OPEN, CLOSE, READ, WRITE = 3, 4, 5, 6
LSTAT, FSTAT, SETSTAT, FSETSTAT = 7, 8, 9, 10
OPENDIR, READDIR, REMOVE, MKDIR, RMDIR = 11, 12, 13, 14, 15
REALPATH, STAT, RENAME, READLINK, SYMLINK = 16, 17, 18, 19, 20
STATUS, HANDLE, DATA, NAME, ATTRS = 101, 102, 103, 104, 105
EXTENDED, EXTENDED_REPLY = 200, 201

OK, END_OF_FILE, NO_SUCH_FILE, PERMISSION_DENIED, FAILURE, BAD_MESSAGE = 0, 1, 2, 3, 4, 5
UNSUPPORTED = 8

FOR_READING, FOR_WRITING, CREATE, EXCLUSIVE = 0x01, 0x02, 0x08, 0x20

_SIZE, _OWNER, _PERMISSIONS, _TIMES, _EXTENDED = 0x01, 0x02, 0x04, 0x08, 0x80000000
_LATEST = 0xFFFFFFFF


class WireError(Exception):
    """The server sent what is no packet of this protocol."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a server tells of a name, None where it does not; `mode` has the kind of file in its upper bits."""

    size: int | None = None
    user: int | None = None
    mode: int | None = None
    seconds: int | None = None


class Reader:
    """Takes one packet apart; raises `WireError` where it ends early."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, length: int) -> bytes:
        """The next bytes as they are."""
        end = self._at + length
        if end > len(self._content):
            raise WireError("a packet ends early")
        found = self._content[self._at : end]
        self._at = end
        return found

    def number(self) -> int:
        """A number of 32 bits."""
        return int.from_bytes(self.take(4), "big")

    def large(self) -> int:
        """A number of 64 bits."""
        return int.from_bytes(self.take(8), "big")

    def text(self) -> bytes:
        """Bytes with their length before them."""
        return self.take(self.number())

    def attributes(self) -> Attributes:
        """What is told of a file."""
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
        """Whether nothing is left."""
        return self._at >= len(self._content)


def number(value: int) -> bytes:
    """A number of 32 bits."""
    return value.to_bytes(4, "big")


def large(value: int) -> bytes:
    """A number of 64 bits."""
    return value.to_bytes(8, "big")


def text(value: bytes) -> bytes:
    """Bytes with their length before them."""
    return number(len(value)) + value


def attributes(*, mode: int | None = None, mtime_ns: int | None = None) -> bytes:
    """What a file is to get; times are whole seconds of 32 bits, for access and change alike."""
    flags, content = 0, b""
    if mode is not None:
        flags |= _PERMISSIONS
        content += number(mode)
    if mtime_ns is not None:
        flags |= _TIMES
        content += number(whole_seconds(mtime_ns)) * 2
    return number(flags) + content


def whole_seconds(mtime_ns: int) -> int:
    """A time as this protocol can hold it: the second it lies in, from 1970 to 2106."""
    return min(max(mtime_ns // 1_000_000_000, 0), _LATEST)


def packet(kind: int, identifier: int, content: bytes) -> bytes:
    """A request with its number; `content` may be followed by data that is sent without copying it."""
    return struct.pack(">IBI", len(content) + 5, kind, identifier) + content


def init() -> bytes:
    """The first packet of a client."""
    return struct.pack(">IBI", 5, INIT, VERSION)


def extensions_of(content: bytes) -> dict[bytes, bytes]:
    """What the server's VERSION packet offers; raises `WireError` for another version than 3."""
    reader = Reader(content)
    if reader.number() != VERSION:
        raise WireError("the server speaks another version of SFTP")
    found: dict[bytes, bytes] = {}
    while not reader.done:
        name = reader.text()
        found[name] = reader.text()
    return found
