"""Opening absolute paths in which other accounts may have planted symlinks (S21).

Below a configured root a symlink is followed only if it belongs to this account or to root. Every component is opened
by descriptor, so that what is swapped meanwhile is either seen or not used.
"""

import contextlib
import errno
import os
import stat
from typing import Any, Dict, Iterable, List, Optional, Tuple

from transfers.agent import frames
from transfers.agent.problems import RefusedError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER_PATH = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_LINKS = 40
_Identity = Tuple[int, int]

# The requests of one path each that act on what is found there, and the fields that name it.
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
_FOLLOWING = frozenset(("stat", "is_private", "digest_path"))  # those that follow the last component, too


class Place(object):
    """A folder that was reached: its open `descriptor`, and how it was reached.

    `inside` is False where it is outside of the innermost configured root that its path names. `foreign` tells of
    a symlink of another account that was followed, which happens only to paths below no root.
    """

    def __init__(self, descriptor: int, inside: bool, foreign: Optional[RefusedError]) -> None:  # noqa: FBT001
        self.descriptor = descriptor
        self.inside = inside
        self.foreign = foreign


class Roots(object):
    """The configured roots of a site, as absolute paths. They, and what is above them, are trusted."""

    def __init__(self, paths: Iterable[bytes] = ()) -> None:
        self._paths = sorted({os.path.normpath(path) for path in paths}, key=len)

    def open(self, path: bytes, make: bool = False) -> Place:  # noqa: FBT001, FBT002
        """Open the folder at an absolute path; with `make` missing folders are made with the site's umask.

        Raises OSError, and `RefusedError` for a symlink of another account below a root.
        """
        path = os.path.normpath(path)
        if path.startswith(b"//"):
            path = path[1:]
        above = [root for root in self._paths if _is_below(path, root)]
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
            return Place(descriptor, not above or root in walk.trail, walk.foreign)
        except OSError as problem:
            number = problem.errno or errno.EIO
            raise OSError(number, os.strerror(number), path) from None
        finally:
            os.close(walk.descriptor)

    def check(self, path: bytes) -> None:
        """Raise `RefusedError` where a path leads through a symlink of another account below a root; absent is fine."""
        if any(_is_below(path, root) for root in self._paths):
            try:
                os.close(self.open(path).descriptor)
            except OSError as problem:
                if problem.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                    raise

    def check_request(self, word: str, header: Dict[str, Any]) -> None:
        """Raise `RefusedError` where a request names something behind a symlink of another account."""
        paths = [frames.bytes_of(header[key]) for key in _PATHS.get(word, ())]
        whole = paths if word in _FOLLOWING else []
        if word == "put_all":
            named = list(header["folders"]) + [one[0] for one in header["files"]]
            paths += [frames.bytes_of(text) for text in named]
        elif word == "get_all":
            paths += [frames.bytes_of(text) for text in header["paths"]]
        for path in {*whole, *map(os.path.dirname, paths)}:
            if path.startswith(b"/"):
                self.check(path)


def outside(path: bytes) -> RefusedError:
    """The error for a path that leads out of the configured root that it names."""
    words = "symlinks in this path lead out of the configured root"
    real = os.path.realpath(path).decode("utf-8", "replace") if path else ""
    return RefusedError("leaves-root", "{}, to {!r}".format(words, real) if real else words)


class _Walk(object):
    """A descriptor that moves from folder to folder; `trail` are those on the way, as far as they are known."""

    def __init__(self, descriptor: int, guarded: bool) -> None:  # noqa: FBT001
        self._guarded = guarded
        self._links = 0
        self.descriptor = descriptor
        self.trail = [_identity(descriptor)]
        self.foreign: Optional[RefusedError] = None

    def follow(self, names: List[bytes], make: bool) -> None:  # noqa: FBT001
        """Go down these names, and through the symlinks among them."""
        coming = [(name, make) for name in reversed(names)]
        while coming:
            name, makes = coming.pop()
            if name == b"..":
                self._climb()
                continue
            target = self._enter(name, makes)
            if target is None:
                continue
            if target.startswith(b"/"):
                self._restart()
            coming += [(one, False) for one in reversed(_names(target))]

    def _enter(self, name: bytes, make: bool) -> Optional[bytes]:  # noqa: FBT001
        """Open a folder of that name; returns where a symlink leads instead."""
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
                self._meet_foreign(name, status.st_uid, target)
            return target
        finally:
            os.close(found)

    def _open(self, name: bytes) -> int:
        try:
            # Read access makes an automounter mount what belongs here; O_PATH alone does not.
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self.descriptor)
        except OSError as problem:
            if problem.errno not in (errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                raise
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.descriptor)

    def _meet_foreign(self, name: bytes, owner: int, target: bytes) -> None:
        refusal = _foreign_link(name, owner, target)
        if self._guarded:
            raise refusal
        self.foreign = self.foreign or refusal

    def _climb(self) -> None:
        self._move(os.open(b"..", _FOLDER_PATH, dir_fd=self.descriptor))
        found = _identity(self.descriptor)
        del self.trail[-1:]
        if self.trail[-1:] != [found]:  # above where we began, or a folder was moved meanwhile
            self.trail = [found]

    def _restart(self) -> None:
        self._move(os.open(b"/", _FOLDER_PATH))
        self.trail = [_identity(self.descriptor)]

    def _move(self, descriptor: int) -> None:
        os.close(self.descriptor)
        self.descriptor = descriptor


def _foreign_link(name: bytes, owner: int, target: bytes) -> RefusedError:
    words = "{!r} is a symlink to {!r} that belongs to another account (uid {})".format(
        name.decode("utf-8", "replace"), target.decode("utf-8", "replace"), owner
    )
    return RefusedError("foreign-symlink", words)


def _open_start(path: bytes) -> int:
    try:
        return os.open(path, _FOLDER)
    except PermissionError:  # who may not list it may still go through it
        return os.open(path, _FOLDER_PATH)


def _identity(descriptor: int) -> _Identity:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _names(path: bytes) -> List[bytes]:
    return [name for name in path.split(b"/") if name not in (b"", b".")]


def _is_below(path: bytes, root: bytes) -> bool:
    """Whether a path is a root, or below it, as they are written."""
    return path == root or path.startswith(root.rstrip(b"/") + b"/")
