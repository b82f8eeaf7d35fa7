"""Define an entry of a listing and the order of entries."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

_BLOCK = 4096  # a hole is at least so large
MOST_NS = (
    2**63 * 10**9
)  # no time that a filesystem reports, in nanoseconds, is this far from 1970 (time_t has 64 bits)


class Kind(StrEnum):
    """What an entry is; SPECIAL covers devices, FIFOs and sockets, which are never created or opened (S2)."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    SPECIAL = "special"


class Proof(StrEnum):
    """How well an entry is known to equal its source,, best first."""

    DIGEST = "digest"
    RECORDED = "recorded"
    CLAIMED = "claimed"
    SIZE = "size"
    NONE = "none"

    @property
    def strength(self) -> int:
        """Larger is stronger."""
        return (Proof.NONE, Proof.SIZE, Proof.CLAIMED, Proof.RECORDED, Proof.DIGEST).index(self)


def weakest(first: Proof, second: Proof) -> Proof:
    """The one that promises less."""
    return first if first.strength <= second.strength else second


class Entry(NamedTuple):
    """One name below a root.

    `path` is relative, bytes, without a leading or trailing slash; the root itself is b"". `mtime_ns` is 0
    where the store keeps none; `mode` holds permission bits, or -1 where unknown; `link` is a symlink's
    target, `etag` a store's own tag, `digest` a sha256 in hexadecimal that the store recorded with this very
    content, `offline` a file whose bytes are not on disk (tape), `allocated` how many bytes are, -1 where
    unknown, `attributes` its `user.*` attributes as `transfers.agent.writing` packs them, where they were
    asked for, `same_as` an earlier name of the same file, where hard links are kept.
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

    @property
    def sparse(self) -> bool:
        """Whether a file has holes, or is kept in less than its size (compressed, on tape)."""
        return self.kind is Kind.FILE and 0 <= self.allocated <= self.size - _BLOCK

    @property
    def order(self) -> bytes:
        """The key of the canonical order: the bytes of the path, a folder's with a slash behind it."""
        return self.path + b"/" if self.kind is Kind.FOLDER else self.path


def enclosing(path: bytes) -> Iterator[bytes]:
    """The folders around a path, nearest first, the root (b"") last."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path
    yield b""
