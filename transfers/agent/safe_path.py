"""Open paths without following symlinks below a root (S1), and check symlinks above it (S21).

Below a configured root a symlink is followed only if it belongs to this account or to root. Each component is
opened by descriptor, so that a concurrent replacement is either detected or not used.
"""

import contextlib
import errno
import os
import resource
import stat
import sys
from collections import OrderedDict
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from transfers.agent import protocol
from transfers.agent.progress import step
from transfers.agent.protocol import (
    IS_FILE,
    IS_FOLDER,
    IS_LINK,
    IS_SPECIAL,
    UNSAFE_COMPONENTS,
    Record,
    RefusedError,
    UnsafeNameError,
    is_in,
)

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_OPEN = 64


def raise_file_limit() -> None:
    """Raise the limit of open files: a pack keeps hundreds open until synced; many sites start with 1024."""
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):
        pass


def split_path(path: bytes) -> List[bytes]:
    """Return the components of a safe relative path; raises `UnsafeNameError`."""
    parts = path.split(b"/")
    if b"\0" in path or not UNSAFE_COMPONENTS.isdisjoint(parts):
        raise UnsafeNameError("unsafe name")
    return parts


_KINDS = {stat.S_IFREG: IS_FILE, stat.S_IFDIR: IS_FOLDER, stat.S_IFLNK: IS_LINK}


def record_of(path: bytes, found: os.stat_result, link: bytes = b"") -> Record:
    """Return a stat result as a record."""
    mode = found.st_mode
    kind = _KINDS.get(mode & 0o170000, IS_SPECIAL)
    size, blocks = (found.st_size if kind == IS_FILE else 0), found.st_blocks
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
            # A large file without blocks is on tape, or is one hole.
            1 if size > 4096 and not blocks else 0,
            blocks * 512,
            b"",
        ),
    )


class Root(object):
    """A folder below which paths are opened; caches open parents. Used by one thread only.

    `path` is the absolute path of the folder where its replacement must be noticed.
    """

    def __init__(self, descriptor: int, path: bytes = b"", most_open: int = _MOST_OPEN) -> None:
        self.descriptor = descriptor
        self.path = path
        self._most_open = most_open
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def clone(self, most_open: int = _MOST_OPEN) -> "Root":
        """Return the same folder for another thread, which keeps so many folders open."""
        return Root(os.dup(self.descriptor), self.path, most_open)

    def leads_to(self, folder: bytes = b"") -> bool:
        """Return whether the path of a folder below (b"": of the root) still leads to the folder that was opened.

        Otherwise it was renamed, replaced, or unmounted while it was in use.
        """
        try:
            if self.path:
                found = os.stat(os.path.join(self.path, folder) if folder else self.path)
            else:
                found = os.stat(folder or b".", dir_fd=self.descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(found, os.fstat(self.folder(folder)))

    def parent(self, path: bytes, make: bool = False) -> int:  # noqa: FBT001, FBT002  # Python 3.6 style
        """Return a descriptor of the folder of `path`, owned by this root; raises OSError, `UnsafeNameError`.

        With `make`, missing folders are created with the site's umask.
        """
        step()
        above, _, name = path.rpartition(b"/")
        known = self._open.get(above)
        if known is None or name in UNSAFE_COMPONENTS or b"\0" in name:
            return self._folder(split_path(path)[:-1], make)
        self._open.move_to_end(above)
        return known

    def folder(self, path: bytes) -> int:
        """Return a descriptor of the folder at `path` (b"" is the root itself), owned by this root."""
        step()
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
        self._cache_folder(key, descriptor)
        return descriptor

    def _cache_folder(self, key: bytes, descriptor: int) -> None:
        self._open[key] = descriptor
        # The newest are parents of the folder in use: only older ones may be closed.
        self._close_oldest(self._most_open + key.count(b"/"))

    def _close_oldest(self, most: int) -> None:
        while len(self._open) > most:
            os.close(self._open.popitem(last=False)[1])

    @contextlib.contextmanager
    def keeping_open(self) -> Iterator[None]:
        """Close no folder meanwhile: one that is opened again may be another one under the same name."""
        most, self._most_open = self._most_open, sys.maxsize
        try:
            yield
        finally:
            self._most_open = most
            self._close_oldest(most)

    def forget(self, path: bytes) -> None:
        """Close all folders at or below `path`, because it will be moved or removed."""
        for key in [key for key in self._open if key == path or key.startswith(path + b"/")]:
            os.close(self._open.pop(key))

    def forget_all(self) -> None:
        """Close every folder below the root: other processes may have replaced them."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def lstat(self, path: bytes) -> Optional[Record]:
        """Return the record of `path` without following it; None if absent or a parent is not a folder."""
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
        """Return a descriptor for reading a regular file; never waits for a FIFO; raises OSError."""
        return self.open_known_file(path)[0]

    def open_known_file(self, path: bytes) -> Tuple[int, os.stat_result]:
        """Do the same, and return the file's status, too."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path.rpartition(b"/")[2], flags, dir_fd=self.parent(path))
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file")
        return descriptor, found

    def close(self) -> None:
        """Close all descriptors."""
        self.forget_all()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER_PATH = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_LINKS = 40
_Identity = Tuple[int, int]

# Requests that act on the single path that they name, and the fields that contain it.
_PATHS = {
    "stat": ("path",),
    "is_private": ("path",),
    "make_folder": ("path",),
    "put": ("path",),
    "get": ("path",),
    "names": ("path",),
    "copy": ("source", "target"),
    "digest_path": ("path",),
    "run_once": ("marker",),
}
_FOLLOWING = frozenset(("stat", "is_private", "digest_path"))  # requests that follow the last component, too


class OpenedFolder(NamedTuple):
    """An open folder: its `descriptor`, and how it was reached.

    `inside` is False if it is outside of the innermost configured root that its path names. `foreign` is the
    error for a followed symlink of another account, which is possible only for paths below no root.
    """

    descriptor: int
    inside: bool
    foreign: Optional[RefusedError]

    def root(self, path: bytes) -> Root:
        """Return it as a root that notices when another folder is at the path by which it was opened."""
        return Root(self.descriptor, _normal(path))


class Roots(object):
    """The configured roots of a site, as absolute paths. They, and what is above them, are trusted."""

    def __init__(self, paths: Iterable[bytes] = ()) -> None:
        self._paths = sorted({os.path.normpath(path) for path in paths}, key=len)

    def open(self, path: bytes, make: bool = False) -> OpenedFolder:  # noqa: FBT001, FBT002
        """Open the folder at an absolute path; with `make` missing folders are made with the site's umask.

        Raises OSError, and `RefusedError` for a symlink of another account below a root.
        """
        path = _normal(path)
        above = [root for root in self._paths if is_in(path, root)]
        start = above[0] if above else b"/"
        if make:
            os.makedirs(start, exist_ok=True)
        walk = _Walk(_open_start(start), bool(above))
        try:
            innermost = above[-1] if above else start
            walk.follow(_names(innermost[len(start) :]), make)
            root = walk.trail[-1]
            walk.follow(_names(path[len(innermost) :]), make)
            descriptor = os.open(b".", _FOLDER, dir_fd=walk.descriptor)
            return OpenedFolder(descriptor, not above or root in walk.trail, walk.foreign)
        except OSError as problem:
            number = problem.errno or errno.EIO
            raise OSError(number, os.strerror(number), path) from None
        finally:
            os.close(walk.descriptor)

    def check(self, path: bytes) -> None:
        """Raise `RefusedError` for a symlink of another account on the path below a root; absent is fine."""
        if any(is_in(path, root) for root in self._paths):
            try:
                os.close(self.open(path).descriptor)
            except OSError as problem:
                if problem.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                    raise

    def check_request(self, request: str, header: Dict[str, Any]) -> None:
        """Raise `RefusedError` if a request's path leads through a symlink of another account."""
        paths = [protocol.bytes_of(header[key]) for key in _PATHS.get(request, ())]
        whole = paths if request in _FOLLOWING else []
        if request == "put_all":
            named = list(header["folders"]) + [one[0] for one in header["files"]]
            paths += [protocol.bytes_of(text) for text in named]
        elif request == "get_all":
            paths += [protocol.bytes_of(text) for text in header["paths"]]
        for path in {*whole, *map(os.path.dirname, paths)}:
            if path.startswith(b"/"):
                self.check(path)


def leaves_root_error(path: bytes) -> RefusedError:
    """Return the error for a path that leads out of the configured root that it names."""
    message = "symlinks in this path lead out of the configured root"
    real = os.path.realpath(path).decode("utf-8", "replace") if path else ""
    return RefusedError("leaves-root", "{}, to {!r}".format(message, real) if real else message)


class _Walk(object):
    """A descriptor that moves from folder to folder; `trail` has the known folders on the way."""

    def __init__(self, descriptor: int, guarded: bool) -> None:  # noqa: FBT001
        self._guarded = guarded
        self._links = 0
        self.descriptor = descriptor
        self.trail = [_identity(descriptor)]
        self.foreign: Optional[RefusedError] = None

    def follow(self, names: List[bytes], make: bool) -> None:  # noqa: FBT001
        """Descend through these names, following the symlinks among them."""
        pending_names = [(name, make) for name in reversed(names)]
        while pending_names:
            name, makes = pending_names.pop()
            if name == b"..":
                self._move_up()
                continue
            target = self._enter(name, makes)
            if target is None:
                continue
            if target.startswith(b"/"):
                self._restart()
            pending_names += [(one, False) for one in reversed(_names(target))]

    def _enter(self, name: bytes, make: bool) -> Optional[bytes]:  # noqa: FBT001
        """Open a folder of that name; return the target instead if it is a symlink."""
        try:
            found = self._open(name)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o777, dir_fd=self.descriptor)
            found = self._open(name)
        status = os.fstat(found)
        if stat.S_ISDIR(status.st_mode):
            self._move(found)
            self.trail.append((status.st_dev, status.st_ino))
            return None
        try:
            if not stat.S_ISLNK(status.st_mode):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            self._links += 1
            if self._links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink(b"", dir_fd=found)
            if status.st_uid not in (0, os.geteuid()):
                self._handle_foreign(name, status.st_uid, target)
            return target
        finally:
            os.close(found)

    def _open(self, name: bytes) -> int:
        try:
            # Read access makes an automounter mount the filesystem; O_PATH alone does not.
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self.descriptor)
        except OSError as problem:
            if problem.errno not in (errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                raise
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.descriptor)

    def _handle_foreign(self, name: bytes, owner: int, target: bytes) -> None:
        refusal = _foreign_link(name, owner, target)
        if self._guarded:
            raise refusal
        self.foreign = self.foreign or refusal

    def _move_up(self) -> None:
        self._move(os.open(b"..", _FOLDER_PATH, dir_fd=self.descriptor))
        found = _identity(self.descriptor)
        del self.trail[-1:]
        if self.trail[-1:] != [found]:  # above the start, or a folder was moved meanwhile
            self.trail = [found]

    def _restart(self) -> None:
        self._move(os.open(b"/", _FOLDER_PATH))
        self.trail = [_identity(self.descriptor)]

    def _move(self, descriptor: int) -> None:
        os.close(self.descriptor)
        self.descriptor = descriptor


def _foreign_link(name: bytes, owner: int, target: bytes) -> RefusedError:
    message = "{!r} is a symlink to {!r} that belongs to another account (uid {})".format(
        name.decode("utf-8", "replace"), target.decode("utf-8", "replace"), owner
    )
    return RefusedError("foreign-symlink", message)


def _open_start(path: bytes) -> int:
    try:
        return os.open(path, _FOLDER)
    except PermissionError:  # a folder without read permission may still be entered
        return os.open(path, _FOLDER_PATH)


def _identity(descriptor: int) -> _Identity:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _normal(path: bytes) -> bytes:
    path = os.path.normpath(path)
    return path[1:] if path.startswith(b"//") else path


def _names(path: bytes) -> List[bytes]:
    return [name for name in path.split(b"/") if name not in (b"", b".")]
