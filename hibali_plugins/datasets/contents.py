"""Find the contents of annexed files, and get those that are missing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hibali.amounts import format_size
from hibali.annex_key import key_of_name
from hibali.config.model import Site
from hibali.errors import HibaliError, IncompleteError
from hibali.events import Listener, Noted, ignore
from hibali.text import counted, printable
from hibali_plugins.datasets.repository import (
    RESERVED,
    Key,
    Repository,
    RepositoryPath,
    failure_text,
    find_repository_path,
    is_reserved,
    key_of_link,
    key_of_pointer,
    read_start,
    repository_around,
    run_annex_json,
)
from hibali_plugins.datasets.web_contents import get_with_login


def get_content(repository: Repository, keys: Iterable[bytes]) -> dict[bytes, str]:
    """Get the content of keys with git-annex; return a reason for each key that failed.

    Keys are used because names can have characters that a line of `--batch` cannot.
    """
    wanted = list(dict.fromkeys(keys))
    lines = b"".join(key_of_name(key) + b"\n" for key in wanted)
    try:
        finished, records = run_annex_json(repository, "get", "--batch-keys", stdin=lines)
    except HibaliError as problem:
        hint = f" ({problem.hint})" if problem.hint else ""
        return dict.fromkeys(wanted, f"{problem.message}{hint}")
    records_by_key = {_key(record): record for record in records}
    missing: dict[bytes, str] = {}
    for key in wanted:
        record = records_by_key.get(key_of_name(key))
        if record is None:
            missing[key] = failure_text("git annex get", finished)
        elif record.get("success") is not True:
            missing[key] = _why_not(record)
    return missing


def _key(record: dict[str, Any]) -> bytes:
    return str(record.get("key", "")).encode("utf-8", "surrogateescape")


def _why_not(record: dict[str, Any]) -> str:
    """Return git-annex's error and the copies that it knows."""
    errors = record.get("error-messages")
    reasons = [str(record.get("note") or ""), *(map(str, errors) if isinstance(errors, list) else ())]
    wanted = record.get("wanted")
    places = [
        str(place.get("description") or place.get("uuid"))
        for place in (wanted if isinstance(wanted, list) else ())
        if isinstance(place, dict)
    ]
    message = (
        "; ".join(" ".join(part.split()) for part in reasons if part.strip()) or "git-annex could not get it"
    )
    return printable(message + (f"; copies are in {', '.join(places)}" if places else ""))


_FOLDERS_KNOWN = 4096


class Content(NamedTuple):
    """The absolute path of a content and its status."""

    name: bytes
    status: os.stat_result


class Contents:
    """The files below a path, in nested repositories, too. Names are relative; b"" is the path."""

    def __init__(self, place: RepositoryPath, on_event: Listener, logins: Sequence[Site] = ()) -> None:
        """`logins` are the web servers with a login, which git-annex does not know."""
        self.place = place
        self._logins = logins
        self._on_event = on_event
        self._around = lru_cache(_FOLDERS_KNOWN)(repository_around)
        self._not_got: dict[bytes, str] = {}

    def is_reserved(self, path: bytes) -> bool:
        """Return whether a path belongs to the repository itself."""
        return is_reserved(path)

    def absolute(self, path: bytes) -> bytes:
        """Return the absolute path."""
        return self.place.path.rstrip(b"/") + b"/" + path if path else self.place.path

    def around(self, name: bytes) -> Repository | None:
        """Return the repository that contains an absolute path."""
        return self._around(name.rpartition(b"/")[0])

    @cached_property
    def common(self) -> bytes:
        """The folder, with a trailing slash, outside of which no content is read."""
        path = self.place.path
        folder = path if Path(os.fsdecode(path)).is_dir() else path.rpartition(b"/")[0]
        return os.path.commonpath([folder or b"/", self.place.repository.objects]).rstrip(b"/") + b"/"

    def key(self, path: bytes, link: bytes | None) -> Key | None:
        """Return the key of an annexed file in this repository or in one inside it; None for any other file.

        `link` is the target of a symlink, or None for a file, which may be a pointer.
        """
        name = self.absolute(path)
        if link is not None:
            resolved = self._resolve(name, link)
            return resolved[1] if resolved is not None else None
        content = read_start(name)
        repository = self.around(name) if content.startswith(b"/annex/") else None
        return key_of_pointer(content) if repository is not None and repository.annex else None

    def _resolve(self, name: bytes, link: bytes) -> tuple[bytes, Key] | None:
        """Return the path where a symlink's content would be, and its key."""
        resolved = key_of_link(link, name.rpartition(b"/")[0])
        repository = self.around(name) if resolved is not None else None
        if resolved is None or repository is None or resolved[0] != repository.root:
            return None
        return repository.objects + b"/" + resolved[1], resolved[2]

    def find(self, path: bytes) -> Content | None:
        """Return a file's content; None if it is missing, or outside of `common`."""
        name = self.absolute(path)
        try:
            resolved = self._resolve(name, os.readlink(name))  # noqa: PTH115 - names are bytes here
        except OSError:  # not a link, or nothing at all
            return _content(name) if key_of_pointer(read_start(name)) is None else None
        return _content(resolved[0]) if resolved is not None and resolved[0].startswith(self.common) else None

    def current_key(self, path: bytes) -> Key | None:
        """Return the key of the file that exists now."""
        try:
            link: bytes | None = os.readlink(self.absolute(path))  # noqa: PTH115 - as above
        except OSError:
            link = None
        return self.key(path, link)

    def fetch(self, paths: Iterable[bytes]) -> None:
        """Get missing content with one command per repository, and keep the reasons of failures."""
        wanted: dict[Repository, dict[bytes, int]] = {}
        for path in paths:
            if self.find(path) is not None:
                continue
            repository, key = self.around(self.absolute(path)), self.current_key(path)
            if repository is not None and key is not None and key.name not in self._not_got:
                wanted.setdefault(repository, {})[key.name] = max(key.size, 0)
        for repository, keys in wanted.items():
            root = printable(repository.root)
            self._on_event(
                Noted(
                    f"{root}: getting {counted(len(keys), 'annexed file')} ({format_size(sum(keys.values()))})"
                )
            )
            failed = get_content(repository, keys)
            failed |= get_with_login(repository, failed, self._logins)
            self._not_got.update({key: reason for key, reason in failed.items() if reason})

    def why_missing(self, path: bytes) -> str:
        """Return the reason why a file's content is missing."""
        key = self.current_key(path)
        why = self._not_got.get(key.name) if key is not None else None
        return f"its content is not on this machine: {why or 'git annex get fetches it'}"


def open_contents(path: bytes, logins: Sequence[Site] = ()) -> Contents | None:
    """Return the files at and below an absolute path in a repository; None outside of one."""
    place = find_repository_path(path)
    return Contents(place, ignore, logins) if place is not None else None


def fetch_contents(path: bytes, logins: Sequence[Site] = ()) -> None:
    """Get annexed content at and below an absolute path, also from web servers with these `logins`.

    Raises `IncompleteError` if some fails.
    """
    contents = open_contents(path, logins)
    if contents is None:
        return
    files = list(_files_below(contents.place.path))
    contents.fetch(files)
    missing = [
        name for name in files if contents.find(name) is None and contents.current_key(name) is not None
    ]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise IncompleteError(
            "content-not-here", contents.why_missing(missing[0]) + more, subject=printable(path)
        )


def _files_below(root: bytes) -> Iterator[bytes]:
    """Yield files and symlinks below a path, except the repository's own; b"" for a file."""
    path = Path(os.fsdecode(root))
    if path.is_symlink() or not path.is_dir():
        yield b""
        return
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name.lower() not in RESERVED]
        below = folder[len(root) :].strip(b"/")
        for name in files:
            yield below + b"/" + name if below else name


def _content(name: bytes) -> Content | None:
    """Return the content if it is a regular file."""
    try:
        status = os.lstat(name)
    except OSError:
        return None
    return Content(name, status) if stat.S_ISREG(status.st_mode) else None
