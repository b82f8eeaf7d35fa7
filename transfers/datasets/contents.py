"""Which files of a place are annexed, where their content is, and getting it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from hibali.errors import IncompleteError
from hibali.events import Listener, Noted, ignore
from hibali.text import printable
from transfers.datasets.annexed import POINTER_BYTES, Key, key_of_link, key_of_pointer
from transfers.datasets.getting import get_content
from transfers.datasets.repository import RESERVED, Place, Repository, find_place, repository_around

_FOLDERS_KNOWN = 4096
_LINE_BYTES = 4096


class Content(NamedTuple):
    """Where some bytes are, absolute, and what the system says of that file."""

    name: bytes
    status: os.stat_result


class Contents:
    """The files below one path of a repository, and of others inside it. Names are relative to that path, b"" is itself."""

    def __init__(self, place: Place, tell: Listener) -> None:
        self.place = place
        self._tell = tell
        self._around = lru_cache(_FOLDERS_KNOWN)(repository_around)
        self._not_got: dict[bytes, str] = {}

    def absolute(self, path: bytes) -> bytes:
        """The name as the system has it."""
        return self.place.path.rstrip(b"/") + b"/" + path if path else self.place.path

    def around(self, name: bytes) -> Repository | None:
        """The repository that an absolute name lies in."""
        return self._around(name.rpartition(b"/")[0])

    @cached_property
    def common(self) -> bytes:
        """The folder below which all that may be read lies, with a slash behind it."""
        path = self.place.path
        folder = path if Path(os.fsdecode(path)).is_dir() else path.rpartition(b"/")[0]
        return os.path.commonpath([folder or b"/", self.place.repository.objects]).rstrip(b"/") + b"/"

    def key(self, path: bytes, link: bytes | None) -> Key | None:
        """The key of an annexed file in this very repository, or in one inside it; None for all else.

        `link` is what a symlink says, None for a file, which may be a pointer.
        """
        name = self.absolute(path)
        if link is not None:
            led = self._led(name, link)
            return led[1] if led is not None else None
        content = read_start(name)
        repository = self.around(name) if content.startswith(b"/annex/") else None
        return key_of_pointer(content) if repository is not None and repository.annex else None

    def _led(self, name: bytes, link: bytes) -> tuple[bytes, Key] | None:
        """Where a symlink's content would be, and its key."""
        led = key_of_link(link, name.rpartition(b"/")[0])
        repository = self.around(name) if led is not None else None
        if led is None or repository is None or led[0] != repository.root:
            return None
        return repository.objects + b"/" + led[1], led[2]

    def find(self, path: bytes) -> Content | None:
        """A file's bytes; None where they are not here, or outside of all that may be read."""
        name = self.absolute(path)
        try:
            led = self._led(name, os.readlink(name))  # noqa: PTH115 - names are bytes here
        except OSError:  # not a link, or nothing at all
            return _content(name) if key_of_pointer(read_start(name)) is None else None
        return _content(led[0]) if led is not None and led[0].startswith(self.common) else None

    def key_there(self, path: bytes) -> Key | None:
        """The key of what stands there now."""
        try:
            link: bytes | None = os.readlink(self.absolute(path))  # noqa: PTH115 - as above
        except OSError:
            link = None
        return self.key(path, link)

    def bring(self, paths: Iterable[bytes]) -> None:
        """Get the content of these files, as far as it is not here, each repository's in one go; what cannot be got is remembered."""
        wanted: dict[Repository, dict[bytes, int]] = {}
        for path in paths:
            if self.find(path) is not None:
                continue
            repository, key = self.around(self.absolute(path)), self.key_there(path)
            if repository is not None and key is not None and key.name not in self._not_got:
                wanted.setdefault(repository, {})[key.name] = max(key.size, 0)
        for repository, keys in wanted.items():
            root = printable(repository.root)
            self._tell(Noted(f"{root}: getting {len(keys)} annexed files ({sum(keys.values())} bytes)"))
            self._not_got.update(get_content(repository, keys))

    def why_missing(self, path: bytes) -> str:
        """Why the content of a file is not here."""
        key = self.key_there(path)
        why = self._not_got.get(key.name) if key is not None else None
        return f"its content is not here: {why or 'git annex get brings it'}"


def look_into(path: bytes) -> Contents | None:
    """The files at and below an absolute path that is in a repository; None where it is in none."""
    place = find_place(path)
    return Contents(place, ignore) if place is not None else None


def bring_here(path: bytes) -> None:
    """Get what is annexed at and below an absolute path. Raises `IncompleteError` with what could not be got."""
    contents = look_into(path)
    if contents is None:
        return
    files = list(_files_below(contents.place.path))
    contents.bring(files)
    missing = [name for name in files if contents.find(name) is None and contents.key_there(name) is not None]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise IncompleteError(
            "content-not-here", contents.why_missing(missing[0]) + more, about=printable(path)
        )


def _files_below(root: bytes) -> Iterator[bytes]:
    """Names of files and symlinks below a path, b"" where that is one itself; nothing of what makes a repository."""
    path = Path(os.fsdecode(root))
    if path.is_symlink() or not path.is_dir():
        yield b""
        return
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name.lower() not in RESERVED]
        below = folder[len(root) :].strip(b"/")
        for name in files:
            yield below + b"/" + name if below else name


def is_reserved(path: bytes) -> bool:
    """Whether a relative path is of what makes a repository, and no data."""
    return b"." in path and not RESERVED.isdisjoint(path.lower().split(b"/"))


def _content(name: bytes) -> Content | None:
    """The regular file that stands there by itself, if one does."""
    try:
        status = os.lstat(name)
    except OSError:
        return None
    return Content(name, status) if stat.S_ISREG(status.st_mode) else None


def read_start(name: bytes) -> bytes:
    """The start of a file small enough to be a pointer; nothing of what is none, or cannot be read."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        small = os.fstat(descriptor).st_size <= POINTER_BYTES
        return os.read(descriptor, _LINE_BYTES) if small else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)
