"""Opening names below a root one component at a time, never through a symlink (S1)."""

import contextlib
import errno
import os
import stat
from collections import OrderedDict
from typing import List, Optional

from transfers.agent.records import FILE, FOLDER, LINK, SPECIAL, Record

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEEP_OPEN = 64


class UnsafeNameError(Exception):
    """The relative path is empty, absolute, climbs or holds a NUL."""


def split_path(path: bytes) -> List[bytes]:
    """The components of a safe relative path; raises `UnsafeNameError`."""
    parts = path.split(b"/")
    if b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise UnsafeNameError("unsafe name")
    return parts


_KINDS = {stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFLNK: LINK}


def record_of(path: bytes, found: os.stat_result, link: bytes = b"") -> Record:
    """What stat told, as a record."""
    mode = found.st_mode
    kind = _KINDS.get(mode & 0o170000, SPECIAL)
    size, blocks = (found.st_size if kind == FILE else 0), found.st_blocks
    # tuple.__new__ takes half the time that Record does, and there are millions of them.
    return tuple.__new__(
        Record,
        (
            path,
            kind,
            size,
            found.st_mtime_ns,
            mode & 0o7777,
            found.st_dev & 0xFFFFFFFFFFFFFFFF,
            found.st_ino,
            found.st_nlink & 0xFFFFFFFF,
            found.st_ctime_ns,
            link,
            # A large file without blocks has its bytes elsewhere (tape), or is one hole.
            int(blocks == 0 and size > 4096),
            blocks * 512,
            b"",
        ),
    )


class Root(object):
    """One folder that everything else is opened below; parents stay open for a while. One thread's own."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def clone(self) -> "Root":
        """The same folder for another thread."""
        return Root(os.dup(self.descriptor))

    def parent(self, path: bytes, make: bool = False) -> int:  # noqa: FBT001, FBT002  # Python 3.6 style
        """A descriptor of the folder that holds `path`, owned by this root; raises OSError, `UnsafeNameError`.

        With `make`, missing folders above it are made with the site's umask.
        """
        parts = split_path(path)
        return self._folder(parts[:-1], make)

    def folder(self, path: bytes) -> int:
        """A descriptor of the folder at `path` (b"" is the root itself), owned by this root."""
        known = self._open.get(path)
        if known is not None:
            self._open.move_to_end(path)
            return known
        return self._folder(split_path(path) if path else [], False)

    def _folder(self, parts: List[bytes], make: bool) -> int:  # noqa: FBT001
        if not parts:
            return self.descriptor
        key = b"/".join(parts)
        known = self._open.get(key)
        if known is not None:
            self._open.move_to_end(key)
            return known
        above = self._folder(parts[:-1], make)
        name = parts[-1]
        try:
            descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=above)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o777, dir_fd=above)
            descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=above)
        self._keep(key, descriptor)
        return descriptor

    def _keep(self, key: bytes, descriptor: int) -> None:
        self._open[key] = descriptor
        # The newest are the parents of the one in hand: only older ones may go.
        while len(self._open) > _KEEP_OPEN + key.count(b"/"):
            os.close(self._open.popitem(last=False)[1])

    def forget(self, path: bytes) -> None:
        """Close what is open at or below `path`, because it is about to move or go."""
        for key in [key for key in self._open if key == path or key.startswith(path + b"/")]:
            os.close(self._open.pop(key))

    def forget_all(self) -> None:
        """Close every folder below the root: others may have put new ones in their places."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def lstat(self, path: bytes) -> Optional[Record]:
        """What stands at `path` without following it; None when absent or when a parent is not a folder."""
        try:
            if not path:
                return record_of(b"", os.fstat(self.descriptor))
            parent = self.parent(path)
            name = path.rpartition(b"/")[2]
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            link = os.fsencode(os.readlink(name, dir_fd=parent)) if stat.S_ISLNK(found.st_mode) else b""
        except OSError as problem:
            if problem.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise
        return record_of(path, found, link)

    def open_file(self, path: bytes) -> int:
        """A descriptor for reading a regular file; never waits for a FIFO; raises OSError."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path.rpartition(b"/")[2], flags, dir_fd=self.parent(path))
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file")
        return descriptor

    def close(self) -> None:
        """Close everything."""
        self.forget_all()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
