"""List the annexed files of a dataset, and find files with something else than their content."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hibali_plugins.datasets.git_objects import local_git, read_objects
from hibali_plugins.datasets.repository import (
    POINTER_BYTES,
    Key,
    Repository,
    key_of_link,
    key_of_pointer,
    read_start,
)

_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_BYTES = 1024  # the largest pointer of git-lfs
_LINK_BYTES = 4096  # the longest target of a symlink
_HTML = re.compile(rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_PAGES = (b".html", b".htm", b".xhtml")


class ContentState(StrEnum):
    """What a file of the work tree has."""

    HERE = "its content"
    ABSENT = "no content"
    POINTER = "pointer text"
    WRONG = "something else"


@dataclass(frozen=True, slots=True)
class AnnexedFile:
    """A file of the index: its path below the repository, its key, and the path of its content, b"" if it is unlocked."""

    path: bytes
    key: Key
    place: bytes = b""


@dataclass(frozen=True, slots=True)
class FoundContent:
    """What an annexed file has, and for `ContentState.WRONG` what that is."""

    content: ContentState
    found: str = ""


def annexed_files(repository: Repository, below: Sequence[bytes], most: int) -> tuple[list[AnnexedFile], int]:
    """Return the annexed files of the index at and below these paths, and how many files were not examined.

    At most `most` files of the index are examined. Raises `IncompleteError` if git fails.
    """
    listed = local_git(
        repository, "--literal-pathspecs", "ls-files", "--stage", "-z", "--", *filter(None, below)
    )
    links, files = [], []
    entries = listed.split(b"\0")[:-1]
    for entry in entries[:most]:
        facts, _, path = entry.partition(b"\t")
        mode, name, _ = facts.split(b" ")
        if mode == b"120000":
            links.append((path, name))
        elif mode.startswith(b"100"):
            files.append((path, name))
    found = [*_locked(repository, links), *_unlocked(repository, files)]
    return sorted(found, key=lambda each: each.path), max(0, len(entries) - most)


def _locked(repository: Repository, links: Sequence[tuple[bytes, bytes]]) -> Iterator[AnnexedFile]:
    targets = read_objects(repository, [name for _, name in links], _LINK_BYTES)
    for (path, _), target in zip(links, targets, strict=True):
        folder = (repository.root.rstrip(b"/") + b"/" + path).rpartition(b"/")[0]
        resolved = key_of_link(target or b"", folder)
        if resolved is not None and resolved[0] == repository.root:
            yield AnnexedFile(path, resolved[2], repository.objects + b"/" + resolved[1])


def _unlocked(repository: Repository, files: Sequence[tuple[bytes, bytes]]) -> Iterator[AnnexedFile]:
    contents = read_objects(repository, [name for _, name in files], POINTER_BYTES)
    for (path, _), content in zip(files, contents, strict=True):
        key = key_of_pointer(content) if content is not None else None
        if key is not None:
            yield AnnexedFile(path, key)


def find_content(repository: Repository, file: AnnexedFile) -> FoundContent:
    """Return what the work tree has in place of an annexed file."""
    name = repository.root.rstrip(b"/") + b"/" + file.path
    try:
        status = os.lstat(name)
        if stat.S_ISLNK(status.st_mode) and file.place:
            name = file.place
            status = os.lstat(name)
    except OSError:
        return FoundContent(ContentState.ABSENT)
    if not stat.S_ISREG(status.st_mode):
        return FoundContent(ContentState.ABSENT)
    small = status.st_size <= POINTER_BYTES
    differs = 0 <= file.key.size != status.st_size
    if not (small or differs):
        return FoundContent(ContentState.HERE)
    start = read_start(name) if small else _first_bytes(name)
    if name != file.place and key_of_pointer(start) is not None:
        return FoundContent(ContentState.POINTER)
    found = _disguise(start, status.st_size, differs=differs, page=file.path.lower().endswith(_PAGES))
    return FoundContent(ContentState.WRONG, found) if found else FoundContent(ContentState.HERE)


def _disguise(start: bytes, size: int, *, differs: bool, page: bool) -> str:
    """Return what a content is that cannot be data; "" if it can be."""
    if start.startswith(_LFS) and size <= _LFS_BYTES:
        return "a pointer of git-lfs"
    if key_of_pointer(start) is not None and size <= _LFS_BYTES:
        return "a pointer of git-annex"
    if differs and not page and is_page(start):
        return "an HTML page"
    return ""


def is_page(start: bytes) -> bool:
    """Return whether the start of a content is that of an HTML page."""
    return _HTML.match(start) is not None


def _first_bytes(name: bytes) -> bytes:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _LINK_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
