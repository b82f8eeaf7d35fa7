"""Stream a hostile tar file in bounded memory; nothing is unpacked (S14)."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO

from hibali.errors import RefusedError

MOST_MEMBERS = 20_000
_CHUNK = 1024 * 1024
_MOST_BYTES = 1 << 42  # decompressed
_FREE_BYTES = 64 * 1024 * 1024  # limit of the decompressed size of any archive,
_RATIO = 200  # or this many times the compressed size; real images compress to about a third
_HEADER_BYTES = 64 * 1024  # of the headers of one member; tarfile would read any size that they declare
_XZ_MEMORY = 512 * 1024 * 1024

_Pull = Callable[[int], bytes]


class BrokenArchiveError(Exception):
    """The file is not a readable tar file, or ends too early; the message says why."""


class Hashed:
    """A stream that hashes the bytes read from it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._sha256 = hashlib.sha256()
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes; b"" at the end."""
        content = self._stream.read(min(size, _CHUNK) if size >= 0 else _CHUNK)
        self._sha256.update(content)
        self.count += len(content)
        return content

    def finish(self) -> str:
        """Read the rest and return the sha256 of the whole stream in hexadecimal."""
        while self.read():
            pass
        return self._sha256.hexdigest()


class Forward:
    """A forward-only file of the decompressed content of a stream, with a limit of size."""

    def __init__(self, source: Hashed, start: bytes, subject: str) -> None:
        """Open it; `start` are the first bytes, which were read to find out the compression."""
        self._source = source
        self._subject = subject
        self._pull = _decompressed(_Started(source, start), start)
        self._position = 0
        self.allowance: int | None = None  # bytes that may be read until the next member

    def read(self, size: int = -1) -> bytes:
        """Read exactly `size` bytes, fewer only at the end."""
        assert size >= 0
        if self.allowance is not None:
            if size > self.allowance:
                raise self._bomb("the headers of a member are too large")
            self.allowance -= size
        parts = []
        while size > 0:
            content = self._some(size)
            if not content:
                break
            parts.append(content)
            size -= len(content)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def seek(self, position: int) -> int:
        """Skip forward to a position."""
        if position < self._position:
            raise BrokenArchiveError("its members overlap")
        while self._position < position:
            if not self._some(min(position - self._position, _CHUNK)):
                break
        return self._position

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._position

    def _some(self, size: int) -> bytes:
        try:
            content = self._pull(min(size, _CHUNK))
        except EOFError:
            raise BrokenArchiveError("it ends too early") from None
        except (OSError, zlib.error, lzma.LZMAError) as problem:
            raise BrokenArchiveError(f"it cannot be decompressed: {problem}") from None
        self._position += len(content)
        if self._position > min(_MOST_BYTES, _FREE_BYTES + _RATIO * self._source.count):
            raise self._bomb(f"it would grow to more than {self._position} bytes")
        return content

    def _bomb(self, reason: str) -> RefusedError:
        return RefusedError(
            "archive-bomb", f"hibali stopped reading this archive: {reason}", subject=self._subject
        )


def members(forward: Forward, subject: str) -> Iterator[tuple[tarfile.TarInfo, Iterator[bytes]]]:
    """Yield each member and its content in pieces, which must be read before the next member.

    Raises `BrokenArchiveError` for a file that is not a tar file or was cut short, `RefusedError` `archive-bomb`.
    """
    forward.allowance = _HEADER_BYTES
    try:
        tar = tarfile.open(fileobj=forward, mode="r:")  # type: ignore[call-overload]  # noqa: SIM115  # nothing of its own to close
        member = tar.next()
        for _ in range(MOST_MEMBERS):
            if member is None:
                return
            forward.allowance = None
            if member.sparse is not None:
                raise BrokenArchiveError("it has sparse members")
            yield member, _content(forward, member)
            forward.allowance = _HEADER_BYTES
            member = tar.next()
    except (tarfile.TarError, RecursionError, ValueError, OverflowError) as problem:
        raise BrokenArchiveError(str(problem)) from None
    raise RefusedError("archive-bomb", f"this archive has more than {MOST_MEMBERS} members", subject=subject)


def _content(forward: Forward, member: tarfile.TarInfo) -> Iterator[bytes]:
    remaining = member.size if member.isreg() else 0
    if remaining:
        forward.seek(member.offset_data)
    while remaining > 0:
        content = forward.read(min(remaining, _CHUNK))
        if not content:
            raise BrokenArchiveError("it ends too early")
        remaining -= len(content)
        yield content


class _Started:
    """A stream whose first bytes were read before, with the methods that decompressors need."""

    def __init__(self, source: Hashed, start: bytes) -> None:
        self._source = source
        self._start = start

    def read(self, size: int = -1) -> bytes:
        if not self._start:
            return self._source.read(size)
        end = len(self._start) if size < 0 else size
        content, self._start = self._start[:end], self._start[end:]
        return content

    def prepend(self, content: bytes) -> None:
        self._start = content + self._start

    def seekable(self) -> bool:
        return False


def _decompressed(stream: _Started, start: bytes) -> _Pull:
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=stream, mode="rb").read1  # type: ignore[call-overload, no-any-return]
    if start.startswith(b"BZh"):
        return _Unpacked(stream, bz2.BZ2Decompressor).read
    if start.startswith(b"\xfd7zXZ\0"):
        return _Unpacked(stream, lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY)).read
    return stream.read


class _Unpacked:
    """Decompressed bzip2 or xz, also of several concatenated streams; the library's own classes have no memory limit."""

    def __init__(
        self, stream: _Started, begin: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
    ) -> None:
        self._stream = stream
        self._begin = begin
        self._part = begin()

    def read(self, size: int) -> bytes:
        while True:
            if self._part.eof:
                rest = self._part.unused_data or self._stream.read(_CHUNK)
                if not rest.strip(b"\0"):
                    return b""
                self._stream.prepend(rest)
                self._part = self._begin()
            raw = self._stream.read(64 * 1024) if self._part.needs_input else b""
            if self._part.needs_input and not raw:
                raise EOFError
            content = self._part.decompress(raw, size)
            if content:
                return content
