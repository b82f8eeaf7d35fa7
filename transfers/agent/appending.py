"""Read and append the tails of append-only files after checking their beginning."""

import contextlib
import hashlib
import os
import stat
from collections import OrderedDict
from typing import Any, Callable, Dict, Optional, Tuple

from transfers.agent.committing import set_time
from transfers.agent.progress import step
from transfers.agent.protocol import ChangedError, RefusedError, Reply, UnsafeNameError, problem_of
from transfers.agent.safe_path import Root
from transfers.agent.writing import write_piece

_CHUNK = 1024 * 1024
_REMEMBERED = 4096  # files with a stored hash state; the beginning of others is read again
_MAXIMUM = 16 * 1024 * 1024
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITING = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class PrefixError(Exception):
    """The file at the target cannot be extended; `code` is the reason."""

    def __init__(self, code: str, message: str) -> None:
        super(PrefixError, self).__init__(message)
        self.code = code


class _HashCache(object):
    """Hash states of files by path, each with the identity that must still match; the oldest are dropped."""

    def __init__(self, check: Callable[[], None]) -> None:
        """`check` is called while a beginning is read, and may raise to stop that."""
        self._check = check
        self._known: OrderedDict[bytes, Tuple[Any, int, Any]] = OrderedDict()

    def up_to(self, path: bytes, descriptor: int, offset: int, identity: Any) -> Any:
        """Return a hash of the first `offset` bytes to continue: the stored one, or computed by reading."""
        known = self._known.pop(path, None)
        if known is not None and known[:2] == (identity, offset):
            return known[2].copy()
        summed = hashlib.sha256()
        position = 0
        while position < offset:
            self._check()
            step()
            chunk = os.pread(descriptor, min(_CHUNK, offset - position), position)
            if not chunk:
                raise ChangedError("the file became shorter during reading")
            summed.update(chunk)
            position += len(chunk)
        return summed

    def keep(self, path: bytes, offset: int, identity: Any, summed: Any) -> None:
        """Store a hash state."""
        self._known[path] = (identity, offset, summed)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


class TailReader(object):
    """The source's side. Written bytes are expected not to change; the digest of the whole file verifies it."""

    def __init__(self, root: Root, check: Callable[[], None]) -> None:
        self._root = root
        self._hashes = _HashCache(check)

    def read(self, header: Dict[str, Any]) -> Reply:
        """Return the bytes from `from` to `to` of a file that is at least `to` bytes long.

        `before` and `after` are the sha256 of all bytes up to there, `piece` of the sent ones; or `problem`.
        """
        try:
            return self._read(header["path"], header["from"], header["to"])
        except (OSError, UnsafeNameError, ChangedError) as problem:
            return {"problem": problem_of(problem)}, bytearray()

    def _read(self, path: bytes, start: int, stop: int) -> Reply:
        if not 0 <= start <= stop <= start + _MAXIMUM:
            raise ValueError("the requested range is not valid")
        descriptor = os.open(path.rpartition(b"/")[2], _READING, dir_fd=self._root.parent(path))
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size < stop:
                raise ChangedError("the file became shorter after it was listed")
            identity = (found.st_dev, found.st_ino)
            summed = self._hashes.up_to(path, descriptor, start, identity)
            before = summed.hexdigest()
            body = bytearray()
            while len(body) < stop - start:
                chunk = os.pread(descriptor, min(_CHUNK, stop - start - len(body)), start + len(body))
                if not chunk:
                    raise ChangedError("the file became shorter during reading")
                body += chunk
        finally:
            os.close(descriptor)
        summed.update(body)
        self._hashes.keep(path, stop, identity, summed)
        piece = hashlib.sha256(body).hexdigest()
        return {"problem": None, "before": before, "piece": piece, "after": summed.hexdigest()}, body


class AppendTarget(object):
    """The target's side: a file grows under its final name, so that it always is a prefix of the source."""

    def __init__(self, root: Root, check: Callable[[], None], check_lease: Callable[[], None]) -> None:
        self._root = root
        self._hashes = _HashCache(check)
        self._check_lease = check_lease

    def append(self, header: Dict[str, Any], body: bytearray) -> Dict[str, Any]:
        """Append `body` at offset `from`, if both the existing bytes and `body` match the source's hashes.

        With `last` it is on disk and has the source's mtime when this returns.
        """
        self._check_lease()
        try:
            self._append(header, body)
        except PrefixError as problem:
            return {"problem": [problem.code, str(problem), False]}
        except (OSError, UnsafeNameError, ChangedError, RefusedError) as problem:
            return {"problem": problem_of(problem)}
        return {"problem": None}

    def _append(self, header: Dict[str, Any], body: bytearray) -> None:
        path, start = header["path"], header["from"]
        descriptor, made = self._open(path, header["mode"] if not start else None)
        try:
            found = _checked(descriptor, start)
            summed = self._hashes.up_to(path, descriptor, start, _identity(found))
            if summed.hexdigest() != header["before"]:
                raise PrefixError("not-a-prefix", "the target file is not the beginning of the source file")
            piece = hashlib.sha256(body).hexdigest()
            summed.update(body)
            if piece != header["piece"] or summed.hexdigest() != header["after"]:
                raise PrefixError("corrupt", "the received data differs from the data read at the source")
            try:
                write_piece(descriptor, memoryview(body), start)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, start)
                raise
            if header["last"]:
                set_time(descriptor, header["mtime_ns"])
                os.fsync(descriptor)
            if made or header["last"]:
                os.fsync(self._root.parent(path))
            self._hashes.keep(path, start + len(body), _identity(os.fstat(descriptor)), summed)
        finally:
            os.close(descriptor)

    def _open(self, path: bytes, mode: Optional[int]) -> Tuple[int, bool]:
        """Return a descriptor, and whether the file was created, which requires `mode`."""
        name = path.rpartition(b"/")[2]
        parent = self._root.parent(path, make=mode is not None)
        try:
            return os.open(name, _WRITING, dir_fd=parent), False
        except FileNotFoundError:
            if mode is None:
                raise PrefixError("target-changed", "the target file no longer exists") from None
        permissions = 0o777 if mode >= 0 and mode & 0o100 else 0o666
        return os.open(name, _WRITING | os.O_CREAT | os.O_EXCL, permissions, dir_fd=parent), True


def _checked(descriptor: int, size: int) -> os.stat_result:
    """Check a regular file of that size with one link: another name would show what is appended."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        raise PrefixError(
            "not-ours-alone",
            "the target file has another owner or further hard links, so hibali does not append to it",
        )
    if found.st_size != size:
        raise PrefixError("target-changed", "the size of the target file changed")
    return found


def _identity(found: os.stat_result) -> Tuple[int, ...]:
    """Return the fields that change with every write to the file (S5)."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
