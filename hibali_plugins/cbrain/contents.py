"""Read the contents of single userfiles: the API sends whole files only, so large ones pass through a temporary file."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from typing import IO, Any

from hibali.errors import IncompleteError
from hibali_plugins.cbrain.client import CbrainClient
from hibali_plugins.cbrain.records import Userfile

WHOLE_BYTES = 4 * 1024 * 1024  # files up to this size are held in memory
_MOST_FILES = 8  # temporary files at a time: those that are read at once, and a few that were


class _TemporaryFile:
    """The content of one userfile, received at the first read."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.file: IO[bytes] | None = None
        self.size = 0
        self.left = 0  # bytes that were not read yet


class Contents:
    """The contents of userfiles; thread-safe. Close it at the end."""

    def __init__(self, client: CbrainClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._files: OrderedDict[int, _TemporaryFile] = OrderedDict()

    def read(self, userfile: Userfile, offset: int, length: int | None, most: int) -> tuple[bytes, int]:
        """Return bytes of the content from `offset`, and its size.

        Raises:
            IncompleteError: It has more than `most` bytes, so it changed since it was listed.
        """
        if length is None or most <= WHOLE_BYTES:
            content = self._whole(userfile, most)
            end = None if length is None else offset + length
            return content[offset:end], len(content)
        temporary = self._temporary(userfile)
        with temporary.lock:
            if temporary.file is None:
                self._receive(userfile, temporary, most)
            assert temporary.file is not None
            piece = os.pread(temporary.file.fileno(), length, offset)
            temporary.left -= len(piece)
            if temporary.left <= 0:
                self._forget(userfile.id)
            return piece, temporary.size

    def digest(self, userfile: Userfile, most: int) -> tuple[str, int]:
        """Receive the content and return its sha256 and size."""
        hashed = _Hash()
        self._client.receive_content(userfile.id, hashed.add, limit=most + 1, restart=hashed.restart)
        return hashed.sha256.hexdigest(), hashed.size

    def close(self) -> None:
        """Remove the temporary files."""
        with self._lock:
            for temporary in self._files.values():
                if temporary.file is not None:
                    temporary.file.close()
            self._files.clear()

    def _whole(self, userfile: Userfile, most: int) -> bytes:
        pieces: list[bytes] = []
        self._client.receive_content(userfile.id, pieces.append, limit=most + 1, restart=pieces.clear)
        content = b"".join(pieces)
        if len(content) > most:
            raise _changed(userfile)
        return content

    def _temporary(self, userfile: Userfile) -> _TemporaryFile:
        with self._lock:
            if userfile.id not in self._files:
                self._files[userfile.id] = _TemporaryFile()
            self._files.move_to_end(userfile.id)
            return self._files[userfile.id]

    def _receive(self, userfile: Userfile, temporary: _TemporaryFile, most: int) -> None:
        file = tempfile.TemporaryFile(prefix="hibali-")  # noqa: SIM115  # closed by _forget() or close()

        def restart() -> None:
            file.seek(0)
            file.truncate()

        try:
            self._client.receive_content(userfile.id, file.write, limit=most + 1, restart=restart)
            file.flush()
        except BaseException:
            file.close()
            raise
        temporary.size = temporary.left = file.tell()
        if temporary.size > most:
            file.close()
            raise _changed(userfile)
        temporary.file = file
        self._limit(userfile.id)

    def _limit(self, current: int) -> None:
        """Remove the files that were used least recently; a reader that needs one again receives it again."""
        with self._lock:
            for number in list(self._files)[: max(0, len(self._files) - _MOST_FILES)]:
                old = self._files[number]
                if number != current and old.lock.acquire(blocking=False):
                    try:
                        del self._files[number]
                        if old.file is not None:
                            old.file.close()
                            old.file = None
                    finally:
                        old.lock.release()

    def _forget(self, number: int) -> None:
        with self._lock:
            temporary = self._files.pop(number, None)
        if temporary is not None and temporary.file is not None:
            temporary.file.close()
            temporary.file = None


class _Hash:
    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.sha256: Any = hashlib.sha256()
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.sha256.update(piece)
        self.size += len(piece)


def _changed(userfile: Userfile) -> IncompleteError:
    return IncompleteError("source-changed", "it changed while it was read", subject=userfile.name)
