"""Receive a collection as a tar archive, and read its files from a temporary copy.

The API neither lists nor reads single files of a collection. The archive is unpacked into one temporary file
without creating any of its names here.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from typing import IO

from hibali.errors import IncompleteError, RefusedError
from hibali.text import printable
from hibali_plugins.cbrain.client import CbrainClient
from hibali_plugins.cbrain.records import Userfile
from transfers.model.entry import Entry, Kind
from transfers.model.facts import unsafe_component

_MOST_RECEIVED = 512 * 1024 * 1024  # compressed; portals send at most 400 megabytes of content
_MOST_BYTES = 4 * 1024 * 1024 * 1024  # unpacked: the size of a collection may be unknown to the portal
_MOST_NAMES = 1_000_000
_PIECE = 1024 * 1024
_GZIP = 31  # zlib's number for the gzip format


@dataclass(frozen=True, slots=True)
class _Found:
    entry: Entry
    offset: int


class CollectionArchive:
    """The files of one collection; close it at the end. Reading is thread-safe."""

    def __init__(self, client: CbrainClient, userfile: Userfile) -> None:
        """Receive the archive. Raise connection errors, and `RefusedError` for a collection that is too large."""
        self.userfile = userfile
        self.tag = f"{userfile.id}-{userfile.size}"
        self._subject = printable(userfile.name)
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="hibali-")  # noqa: SIM115  # closed by close()
        try:
            receiver = _Receiver(self._file, self._subject)
            client.receive_archive(userfile.id, receiver.add, limit=_MOST_RECEIVED, restart=receiver.restart)
            receiver.end()
            self._found = self._read_names()
        except BaseException:
            self.close()
            raise

    def entries(self) -> list[Entry]:
        """Return the entries below the collection, sorted."""
        return sorted((found.entry for found in self._found.values()), key=lambda entry: entry.order)

    def find(self, path: bytes) -> Entry | None:
        """Return the entry of a path below the collection, or None."""
        found = self._found.get(path)
        return None if found is None else found.entry

    def read(self, path: bytes, offset: int, length: int | None) -> tuple[bytes, int]:
        """Return bytes of a file from `offset`, and its size. Raise `IncompleteError` if it does not exist."""
        found = self._found.get(path)
        if found is None or found.entry.kind is not Kind.FILE:
            raise IncompleteError("vanished", "the collection has no such file", subject=self._subject)
        size = found.entry.size
        wanted = size - offset if length is None else min(length, size - offset)
        return os.pread(self._file.fileno(), max(0, wanted), found.offset + offset), size

    def close(self) -> None:
        """Remove the temporary file; safe to call twice."""
        self._file.close()

    def _read_names(self) -> dict[bytes, _Found]:
        """Return what the archive contains, by path below the collection."""
        self._file.seek(0)
        found: dict[bytes, _Found] = {}
        top = self.userfile.name
        try:
            with tarfile.open(
                fileobj=self._file, mode="r:", encoding="utf-8", errors="surrogateescape"
            ) as archive:
                for member in archive:
                    path = self._path(member.name, top)
                    if len(found) >= _MOST_NAMES:
                        raise self._refused(f"it has more than {_MOST_NAMES} names")
                    if path:
                        found[path] = self._found_of(path, member, found, top)
        except tarfile.TarError:
            raise IncompleteError(
                "bad-answer", "the portal's archive of the collection is damaged", subject=self._subject
            ) from None
        for path in list(found):
            for folder in _above(path):
                found.setdefault(folder, _Found(Entry(folder, Kind.FOLDER), 0))
        return found

    def _path(self, name: str, top: str) -> bytes:
        """Return the path of a member below the collection, b"" for its folder itself."""
        path = name.removeprefix("./").rstrip("/")
        if path == top:
            return b""
        below = path.removeprefix(f"{top}/").encode("utf-8", "surrogateescape")
        reason = unsafe_component(below)
        if reason or not path.startswith(f"{top}/"):
            raise self._refused(f"its archive has the name {printable(name)}", "unsafe-name")
        return below

    def _found_of(self, path: bytes, member: tarfile.TarInfo, found: dict[bytes, _Found], top: str) -> _Found:
        mtime_ns = max(0, int(member.mtime * 1_000_000_000))
        mode = member.mode & 0o777
        if member.isreg() and not member.issparse():
            entry = Entry(path, Kind.FILE, member.size, mtime_ns, mode, etag=self.tag)
            return _Found(entry, member.offset_data)
        if member.islnk():
            same = found.get(self._path(member.linkname, top))
            if same is not None:
                return _Found(same.entry._replace(path=path), same.offset)
        if member.isdir():
            return _Found(Entry(path, Kind.FOLDER, mtime_ns=mtime_ns, mode=mode), 0)
        if member.issym():
            link = member.linkname.encode("utf-8", "surrogateescape")
            return _Found(Entry(path, Kind.LINK, mtime_ns=mtime_ns, link=link), 0)
        return _Found(Entry(path, Kind.SPECIAL), 0)

    def _refused(self, reason: str, code: str = "too-large") -> RefusedError:
        return RefusedError(code, f"the collection cannot be read: {reason}", subject=self._subject)


def _above(path: bytes) -> list[bytes]:
    parts = path.split(b"/")[:-1]
    return [b"/".join(parts[:count]) for count in range(1, len(parts) + 1)]


class _Receiver:
    """Unpack what arrives into a file, up to a limit: a small archive can hold very much."""

    def __init__(self, file: IO[bytes], subject: str) -> None:
        self._file = file
        self._subject = subject
        self._unpack = zlib.decompressobj(_GZIP)
        self._size = 0

    def restart(self) -> None:
        """Forget what an earlier attempt delivered."""
        self._unpack = zlib.decompressobj(_GZIP)
        self._size = 0
        self._file.seek(0)
        self._file.truncate()

    def add(self, content: bytes) -> None:
        """Unpack one chunk."""
        while True:
            try:
                unpacked = self._unpack.decompress(content, _PIECE)
            except zlib.error:
                raise self._damaged() from None
            self._size += len(unpacked)
            if self._size > _MOST_BYTES:
                raise RefusedError(
                    "too-large",
                    f"the collection cannot be read: it has more than {_MOST_BYTES} bytes",
                    subject=self._subject,
                )
            self._file.write(unpacked)
            content = self._unpack.unconsumed_tail
            if not content and len(unpacked) < _PIECE:
                return

    def end(self) -> None:
        """Check that the archive is complete. Raise `IncompleteError`."""
        if not self._unpack.eof:
            raise self._damaged()
        self._file.flush()

    def _damaged(self) -> IncompleteError:
        return IncompleteError(
            "bad-answer", "the portal's archive of the collection is damaged", subject=self._subject
        )
