"""Files opened through `hibali://`: one version while it is read, whole or absent when it was written."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec.spec import AbstractBufferedFile

from hibali_plugins.filesystem.site_files import Found, Version, damaged

_BLOCK_BYTES = 4 * 1024 * 1024


class ReadFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """One version of a file, read in blocks; a copy in another process (pickle) reads the same version."""

    def __init__(
        self,
        fs: Any,
        path: str,
        found: Found,
        block_size: int | None,
        cache_options: dict[str, Any],
        cache_type: str = "readahead",
        **kwargs: Any,
    ) -> None:
        """Keep the file as it was `found` at its site."""
        self.found = found
        self._sha256 = hashlib.sha256()
        self._hashed = 0  # the bytes from the start that were read without a gap
        self._hashing = threading.Lock()
        super().__init__(
            fs,
            path,
            "rb",
            block_size or _BLOCK_BYTES,
            cache_type=cache_type,
            cache_options=cache_options,
            size=found.entry.size,
            **kwargs,
        )

    def _fetch_range(self, start: int, end: int) -> bytes:
        """Read a range of this version. Raises OSError if the file was replaced, or at its end if it is damaged."""
        content: bytes = self.fs.read_ranges(self.found, [(start, min(end, self.size))])[0]
        with self._hashing:
            # the whole in one range was compared already
            if self.found.entry.digest and start == self._hashed and len(content) < self.size:
                self._sha256.update(content)
                self._hashed += len(content)
                if self._hashed == self.size and self._sha256.hexdigest() != self.found.entry.digest:
                    raise damaged(self.path)
        return content

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.fs, self.path, self.found.version, self.blocksize, self.loc)


def _reopen(fs: Any, path: str, version: Version, block_size: int, position: int) -> Any:
    opened = fs.reopen(path, version, block_size=block_size)
    opened.seek(position)
    return opened


_SPOOL = "hibali-write-"


def open_spool() -> Any:
    """Create a temporary file, locked while this process runs, and remove those of processes that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SPOOL}*"):
        _remove_abandoned(left)
    while True:
        spool = tempfile.NamedTemporaryFile(prefix=_SPOOL)  # noqa: SIM115  # closed by the caller
        with contextlib.suppress(OSError):
            fcntl.flock(spool, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if Path(spool.name).exists():  # no other process took it for an abandoned one before it was locked
            return spool
        with contextlib.suppress(FileNotFoundError):
            spool.close()


def _remove_abandoned(path: Path) -> None:
    """Remove a temporary file of this account that no process has locked."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        finally:
            os.close(descriptor)


class WriteFile(io.RawIOBase):
    """A file that is written to a temporary file of this machine, and transferred when it is closed.

    If an exception ends the block that writes it, or if it is never closed, nothing appears at the site.
    """

    def __init__(self, spool: Any, send: Callable[[], None], *, autocommit: bool) -> None:
        self._spool = spool
        self._send = send
        self._autocommit = autocommit
        self._handled = sys.exception()  # an exception that was handled before is none of the writer
        self._ended = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to an offset; see io."""
        return int(self._spool.seek(offset, whence))

    def tell(self) -> int:
        """Return the offset."""
        return int(self._spool.tell())

    def truncate(self, size: int | None = None) -> int:
        """Cut the file to a size."""
        return int(self._spool.truncate(size))

    def write(self, content: Any) -> int:
        """Append bytes at the offset."""
        return int(self._spool.write(content))

    def close(self) -> None:
        """Transfer the file; after an exception in the block that writes it, discard it."""
        if self.closed:
            return
        current = sys.exception()
        if self._autocommit and not self._ended:
            if current is not None and current is not self._handled:
                self.discard()
            else:
                self.commit()
        super().close()

    def commit(self) -> None:
        """Transfer the file to its name (fsspec calls it at the end of a transaction)."""
        if not self._ended:
            try:
                self._send()
            finally:
                self.discard()

    def discard(self) -> None:
        """Throw away what was written."""
        self._ended = True
        self._spool.close()

    def __del__(self) -> None:
        """Discard a file that was never closed: it may be half of what was meant."""
        if not self._ended:
            self.discard()
