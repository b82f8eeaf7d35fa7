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
_FREE_BYTES = 64 * 1024 * 1024  # so much may come of however little,
_RATIO = 200  # and beyond it this many bytes of one; images of real software come down to a third
_HEADER_BYTES = 64 * 1024  # of one member's headers; tarfile would read as much as they ask for
_XZ_MEMORY = 512 * 1024 * 1024

_Pull = Callable[[int], bytes]


class BrokenArchiveError(Exception):
    """It cannot be read as a tar file, or ends too early; the text says why."""


class Hashed:
    """A stream of bytes that are hashed as they pass."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._sha256 = hashlib.sha256()
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        """Up to so many bytes; b"" at the end."""
        content = self._stream.read(min(size, _CHUNK) if size >= 0 else _CHUNK)
        self._sha256.update(content)
        self.count += len(content)
        return content

    def finish(self) -> str:
        """Read what is left; the sha256 of all of it, in hexadecimal."""
        while self.read():
            pass
        return self._sha256.hexdigest()


class Forward:
    """What comes out of a stream, plain or decompressed, as a file that only goes forward and does not grow without end."""

    def __init__(self, source: Hashed, start: bytes, subject: str) -> None:
        """`start` is what was read of the stream already, to find out what it is."""
        self._source = source
        self._subject = subject
        self._pull = _decompressed(_Started(source, start), start)
        self._position = 0
        self.allowance: int | None = None  # bytes that may still be read before it is set anew

    def read(self, size: int = -1) -> bytes:
        """Exactly so many bytes, fewer only at the end."""
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
        """Go on to there."""
        if position < self._position:
            raise BrokenArchiveError("its members lie over one another")
        while self._position < position:
            if not self._some(min(position - self._position, _CHUNK)):
                break
        return self._position

    def tell(self) -> int:
        """Where the next byte comes from."""
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
        return RefusedError("archive-bomb", f"this archive is not read on: {reason}", subject=self._subject)


def members(forward: Forward, subject: str) -> Iterator[tuple[tarfile.TarInfo, Iterator[bytes]]]:
    """Each member and its content in pieces, which have to be read before the next one is asked for.

    Raises `BrokenArchiveError` for what is no tar file or was cut short, `RefusedError` `archive-bomb`.
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
    left = member.size if member.isreg() else 0
    if left:
        forward.seek(member.offset_data)
    while left > 0:
        content = forward.read(min(left, _CHUNK))
        if not content:
            raise BrokenArchiveError("it ends too early")
        left -= len(content)
        yield content


class _Started:
    """A stream whose first bytes were read before; only as much of a file as decompressors ask for."""

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
    """bzip2 or xz, perhaps in several streams one after the other; the library's own files know no limit of memory."""

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
