"""What a store can do and hold, and which names it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from transfers.agent.protocol import UNSAFE_COMPONENTS
from transfers.model.entry import Verification

_PLAIN_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./")
_PLAIN = re.compile(rb"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]{0,98}/){0,7}[A-Za-z0-9_-][A-Za-z0-9_.-]{0,98}")
_PLAIN_PATH = (99, 800)  # the longest component and path that _PLAIN matches, in bytes


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plan must know of a store: what it can hold, and its limits."""

    kind: str
    read_verification: Verification  # the best verification when reading from this store
    write_verification: Verification  # the best verification when writing to this store
    ordered: bool = True  # lists in canonical order; if False, `open_store` sorts
    folders: bool = True  # can store empty folders
    folder_markers: bool = False  # without `folders`: can store an empty folder as an object `NAME/`
    file_and_folder: bool = False  # can store a file and a folder with the same name
    links: bool = True  # can store symlinks
    modes: bool = True  # can store permission bits
    hard_links: bool = False  # lists and creates hard links
    attributes: bool = False  # can store `user.*` attributes, if the filesystem can
    mtimes: bool = True  # can store modification times
    mtime_unit_ns: int = 1  # resolution of modification times
    locks: bool = True  # supports a lease lock
    swaps: bool = True  # replaces a file atomically; if False, neither version exists for a moment
    name_bytes: int = 255  # maximum length of a component; 0: no limit
    path_bytes: int = 4096  # maximum length of a relative path
    folds_case: bool = False  # names are case-insensitive
    utf8_names: bool = False  # names must be UTF-8
    segment_bytes: int = 4 * 1024 * 1024  # preferred segment size of large files, at most SEGMENT_BYTES
    least_segment_bytes: int = 1024 * 1024  # minimum segment size
    segment_digests: int = 0  # verifies each segment of files of more bytes by its own sha256; 0: never
    refuses: tuple[bytes, ...] = ()  # substrings that names must not contain
    # What paths must match, and why others are refused.
    accepts: tuple[re.Pattern[bytes], str] | None = None
    # Components, in lower case, that data must not use.
    reserved: frozenset[bytes] = frozenset()
    holes: bool = False  # stores sparse files without allocating their holes
    writable: bool = True  # False: read-only
    complete: bool = (
        True  # a listing without an error is complete; if False, no file is deleted because of a listing
    )
    known: bool = True  # False: the server was not probed, and these facts are assumptions
    hashes: bool = True  # supports `digest`
    globus: bool = False  # a Globus collection of the site has the same files
    only_globus: bool = False  # only Globus can write to it
    reports_packs: bool = False  # sets `packed_at` without a search
    adjusts: bool = False  # `adjust`, which a plan has to know
    names_by_digest: bool = (
        False  # needs the sha256 of a large file before its content, and lists that of each file
    )


def is_own_name(path: bytes) -> bool:
    """Return whether the path is one of hibali's own files: lock, journal, digest manifest, probe objects."""
    if b".hibali" not in path:
        return False
    if b"/.hibali/probe/" in b"/" + path:  # objects of the probe of an object store
        return True
    return path == b".hibali" or any(
        path == own or path.endswith(b"/" + own)
        for own in (b".hibali/lock", b".hibali/journal", b".hibali/begun", b".hibali/manifest.jsonl")
    )


def is_partial_name(path: bytes) -> bool:
    """Return whether the last component is a partial name: `.hibali-` and 32 hexadecimal digits."""
    name = path.rpartition(b"/")[2]
    return (
        len(name) == 40 and name.startswith(b".hibali-") and all(c in b"0123456789abcdef" for c in name[8:])
    )


def unsafe_component(path: bytes) -> str | None:
    """Return why a relative path could leave the root or is ambiguous (S1), or None if it is safe."""
    if b"\0" not in path and UNSAFE_COMPONENTS.isdisjoint(path.split(b"/")):
        return None
    if not path:
        return "it is empty"
    if b"\0" in path:
        return "it contains a NUL byte"
    if path.startswith(b"/"):
        return "it is absolute"
    for part in path.split(b"/"):
        if part in UNSAFE_COMPONENTS:
            return f"it has the component {part.decode('ascii')!r}"
    return None


def name_problem(path: bytes, facts: Facts) -> str | None:
    """Return why the target cannot store this name, or None."""
    reason = unsafe_component(path)
    if reason:
        return reason
    if is_partial_name(path):
        return "hibali uses such names for partial files"
    if is_own_name(path):
        return "hibali reserves this name"
    if facts.path_bytes and len(path) > facts.path_bytes:
        return f"it is longer than {facts.path_bytes} bytes"
    if facts.name_bytes and any(len(part) > facts.name_bytes for part in path.split(b"/")):
        return f"a component is longer than {facts.name_bytes} bytes"
    if facts.utf8_names:
        try:
            path.decode("utf-8")
        except UnicodeDecodeError:
            return "it is not UTF-8"
    for part in facts.refuses:
        if part in path:
            return f"it contains {part!r}"
    if facts.accepts is not None and facts.accepts[0].fullmatch(path) is None:
        return facts.accepts[1]
    if facts.reserved and not facts.reserved.isdisjoint(path.lower().split(b"/")):
        return "datasets reserve this name; to leave it out, add --exclude"
    return None


def plain_names(facts: Facts) -> Callable[[bytes], object]:
    """Return a fast check that is true for most names that the target can store; others need `name_problem`.

    It accepts at most 8 components, each of at most 99 letters, digits, `_`, `-` and `.`, without a leading
    dot.
    """
    longest, most = _PLAIN_PATH
    narrow = 0 < facts.name_bytes < longest or 0 < facts.path_bytes < most
    if narrow or facts.accepts is not None or any(not set(part) - _PLAIN_LETTERS for part in facts.refuses):
        return lambda _: None
    return _PLAIN.fullmatch
