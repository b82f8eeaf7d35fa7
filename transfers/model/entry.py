"""Define the entries of listings and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple, TypeVar

from transfers.agent.protocol import Record

Value = TypeVar("Value")

NO_SOURCE = b"/"
HOLE_BYTES = 4096  # the smallest size of a hole
# no time that a filesystem reports, in nanoseconds, is this far from 1970 (time_t has 64 bits)
MOST_NS = 2**63 * 10**9


class Kind(StrEnum):
    """The type of an entry; SPECIAL (device, FIFO, socket) is never created or opened (S2)."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    SPECIAL = "special"


_KINDS = {b"f": Kind.FILE, b"d": Kind.FOLDER, b"l": Kind.LINK, b"s": Kind.SPECIAL}


class Verification(StrEnum):
    """The method by which an entry was verified to equal its source, strongest first."""

    DIGEST = "digest"
    RECORDED = "recorded"
    CLAIMED = "claimed"
    SIZE = "size"
    NONE = "none"

    @property
    def strength(self) -> int:
        """The rank of the method; larger is stronger."""
        return _STRENGTHS[self]


_STRENGTHS = {method: -rank for rank, method in enumerate(Verification)}


def weakest(first: Verification, second: Verification) -> Verification:
    """Return the weaker method."""
    return first if first is second or first.strength <= second.strength else second


class Entry(NamedTuple):
    """An entry in a listing.

    Attributes:
        path: relative to the root, without a leading or trailing slash; the root itself is b"".
        mtime_ns: 0 if the store has no times.
        mode: permission bits, or -1 if unknown.
        link: the target of a symlink.
        etag: the store's tag of the content.
        digest: the sha256 in hexadecimal that the store recorded for this content.
        offline: whether the content is not on disk (tape).
        allocated: the number of bytes on disk, or -1 if unknown.
        attributes: `user.*` attributes as `transfers.agent.writing` packs them, if requested.
        same_as: an earlier name of the same file, if hard links are kept.
        renamed_from: the path at the source if --rename gives another one, `NO_SOURCE` for a folder that only
            the new paths have, which is never selected.
    """

    path: bytes
    kind: Kind
    size: int = 0
    mtime_ns: int = 0
    mode: int = -1
    device: int = 0
    inode: int = 0
    links: int = 1
    ctime_ns: int = 0
    link: bytes = b""
    etag: str | None = None
    digest: str | None = None
    offline: bool = False
    allocated: int = -1
    attributes: bytes = b""
    same_as: bytes = b""
    renamed_from: bytes = b""

    @property
    def source_path(self) -> bytes:
        """The path at the source."""
        return self.renamed_from or self.path

    @property
    def name(self) -> str:
        """The path as text; bytes that are not UTF-8 are surrogate escapes, as `os.fsdecode` returns them."""
        return self.path.decode("utf-8", "surrogateescape")

    @property
    def sparse(self) -> bool:
        """Whether a file has holes, or uses less space than its size (compressed, on tape)."""
        return self.kind is Kind.FILE and 0 <= self.allocated <= self.size - HOLE_BYTES

    @property
    def order(self) -> bytes:
        """The key of the canonical order: the bytes of the path, for a folder with a trailing slash."""
        return self.path + b"/" if self.kind is Kind.FOLDER else self.path


def entry_of(record: Record) -> Entry:
    """Convert a record of lstat(2) results to an entry."""
    path, kind, size, mtime_ns, mode, device, inode, links, ctime_ns, link, offline, allocated, attributes = (
        record
    )
    status = size, mtime_ns, mode, device, inode, links, ctime_ns, link
    return Entry(path, _KINDS[kind], *status, None, None, offline != 0, allocated, attributes)


def deepest_first(values: Iterable[Value], entry_of: Callable[[Value], Entry]) -> Iterator[Value]:
    """Reorder values in canonical order: each folder after its contents."""
    held: list[Value] = []
    for value in values:
        entry = entry_of(value)
        while held and not entry.order.startswith(entry_of(held[-1]).order):
            yield held.pop()
        if entry.kind is Kind.FOLDER:
            held.append(value)
        else:
            yield value
    yield from reversed(held)


def enclosing(path: bytes) -> Iterator[bytes]:
    """Yield the parent folders of a path, nearest first, the root (b"") last."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path
    yield b""
