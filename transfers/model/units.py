"""What crosses between a plan, a source and a target: items, units, payloads, and how each of them ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from hibali.errors import IncompleteError
from hibali.system_errors import message_of
from hibali.text import printable
from transfers.model.entry import Entry, Kind, Verification

PACK_BYTES = 4 * 1024 * 1024  # maximum size of a pack of small files
PACK_ITEMS = 256
SEGMENT_BYTES = 16 * 1024 * 1024
# Sent on the first of several connections before the others are open: about one round trip.
FIRST_BYTES = 2 * 1024 * 1024
WINDOW_BYTES = 16 * 1024 * 1024  # maximum sent but not yet committed, on one connection
LINE_BYTES = 8 * 1024 * 1024  # added to that limit for each further connection,
MOST_BYTES = 64 * 1024 * 1024  # up to this maximum: the most that an interruption can lose


class Item(NamedTuple):
    """An entry to transfer, identified by its number in the plan: receivers use numbers, not paths (S1).

    Attributes:
        replaces: The existing entry of that name at the target, or None.
        clear: Whether `replaces` is of another kind and may be removed first.
        exact: Commit only if the target still has `replaces` (or no entry); else report "target-changed".
        permissions: The exact permission bits; None keeps the site's default, except for the execute bit.
        attributes: The complete set of `user.*` attributes; None does not change them.
        recorded: The sha256 on record of a source file that did not change since, by size, time and inode; None if unknown.
    """

    number: int
    entry: Entry
    replaces: Entry | None = None
    clear: bool = False
    exact: bool = False
    permissions: int | None = None
    attributes: bytes | None = None
    recorded: str | None = None

    @property
    def carries(self) -> bool:
        """Whether contents are sent: for files, except hard links to a file that the target already has."""
        return self.entry.kind is Kind.FILE and not self.entry.same_as


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of transfer: a pack of whole entries, or one segment of a large file.

    A pack has whole items and `offset` 0. A segment has one item, and is the `length` bytes from `offset`;
    the segments of a file are in order and without gaps, up to the end of the file.
    A `piece` is a segment that is only read, independently of others, without a digest of the whole file.
    The target of a `hashed` segment needs its own sha256, too, if the source hashes the file while it reads it.
    """

    items: tuple[Item, ...]
    offset: int = 0
    length: int = 0
    segment: bool = False
    piece: bool = False
    hashed: bool = False

    @property
    def last(self) -> bool:
        """Whether this unit completes the file (always true for a pack)."""
        ends = self.offset + self.length >= self.items[0].entry.size
        return not self.segment or (ends and not self.piece)


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Metadata to set on `entry`, which was listed or just committed at the target; None means no change."""

    entry: Entry
    permissions: int | None = None
    attributes: bytes | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why an entry could not be read or written; `retryable` is true if sending it again may help."""

    code: str
    message: str
    retryable: bool = False


@dataclass(slots=True)
class Payload:
    """A unit and its contents, as read from the source. Lists have one element for each of `unit.items`.

    Attributes:
        data: The contents of all items, in order.
        sizes: The number of bytes of each item in `data` (0 for folders, links and failures).
        digests: The sha256 of the whole file in hexadecimal; None for folders, links and non-last segments.
        verifications: Of the source: DIGEST if it hashed these bytes, RECORDED if the digest was recorded
            earlier (the target hashes and compares), weaker if there is no digest.
        problems: Failures by position; such an item has no bytes and must not be committed.
        segment_digest: The sha256 of a `hashed` segment, from the same bytes as the digest of the whole file; None if unknown.
    """

    unit: Unit
    data: bytes | bytearray | memoryview
    sizes: list[int]
    digests: list[str | None]
    verifications: list[Verification] = field(default_factory=list)
    problems: dict[int, Problem] = field(default_factory=dict)
    segment_digest: str | None = None


class Committed(NamedTuple):
    """The result for one item at the target: durable under its final name, or a `problem`.

    `digest` was computed or checked by the target over the received bytes; `verification` is the target's verification.
    With `more`, further results of the same reply follow at once. `inode` is the file's at the target, 0 if unknown.
    """

    item: Item
    digest: str | None
    verification: Verification
    etag: str | None = None
    problem: Problem | None = None
    more: bool = False
    inode: int = 0


@dataclass(frozen=True, slots=True)
class Space:
    """Free space in bytes and inodes; None if unknown.

    `by` maps "bytes" and "inodes" to the quota that limits them ("user 1000").
    """

    free_bytes: int | None
    free_inodes: int | None
    by: Mapping[str, str] = field(default_factory=dict)


MISSING = "missing"  # problem code: a file is recorded at the site, but the server does not list it


class ListingIncompleteError(IncompleteError):
    """The error of a listing that lacks some folders or names; nothing may be deleted because of it.

    `unlisted` has all of them. Of the files among them that are known, filters can reject some: see `selected`.
    An entry without a path stands for further known files, which are too many to be named.
    """

    def __init__(
        self,
        subject: str,
        problems: Sequence[tuple[bytes, Problem]],
        known: Sequence[tuple[Entry, Problem]] = (),
    ) -> None:
        self.known = known
        self._others = problems
        self.unlisted = [*problems, *((entry.path, problem) for entry, problem in known)]
        first, problem = self.unlisted[0]
        more = f" and {len(self.unlisted) - 1} more" if len(self.unlisted) > 1 else ""
        super().__init__(
            "listing-incomplete",
            f"could not be listed completely: {printable(first) or '.'} ({problem.message}){more}",
            subject=subject,
        )

    def selected(self, selects: Callable[[Entry], bool]) -> list[tuple[bytes, Problem]]:
        """Return what could not be listed, without the known files that `selects` rejects."""
        return [*self._others, *((entry.path, problem) for entry, problem in self._selected(selects))]

    def raise_selected(self, selects: Callable[[Entry], bool]) -> None:
        """Raise the error without the known files that `selects` rejects, unless nothing is left of it."""
        known = self._selected(selects)
        if known or self._others:
            raise ListingIncompleteError(self.subject or "", self._others, known)

    def _selected(self, selects: Callable[[Entry], bool]) -> list[tuple[Entry, Problem]]:
        of_source = selects is not of_target
        return [each for each in self.known if selects(each[0]) or (of_source and not each[0].path)]

    def raise_renamed(self, rename: Callable[[bytes], bytes | None]) -> None:
        """Raise the error with other names, without what has none, unless nothing is left of it."""
        others = [(path, problem) for each, problem in self._others if (path := rename(each)) is not None]
        known = [
            (entry._replace(path=path), problem)
            for entry, problem in self.known
            if (path := rename(entry.path) if entry.path else b"") is not None
        ]
        if others or known:
            raise ListingIncompleteError(self.subject or "", others, known)

    @property
    def missing(self) -> list[Entry]:
        """The files that are recorded at the site, but that the server does not list."""
        return [entry for entry, problem in self.known if problem.code == MISSING]


NOT_COPIED = "not-copied"  # problem code: the server refused and changed nothing; stream the bytes instead


@dataclass(frozen=True, slots=True)
class Written:
    """An item that a third party wrote under the name `partial`, and its expected sha256 in hexadecimal."""

    item: Item
    partial: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class Tail:
    """A file to append to: the target has `start` of the `entry.size` bytes; the source path is `name`."""

    name: bytes
    entry: Entry
    start: int


class CleanupResult(StrEnum):
    """The result of a cleanup; PLANNED: a dry run would end the upload, FAILED: the server refused."""

    ENDED = "ended"
    PLANNED = "planned"
    KEPT = "kept"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Leftover:
    """An upload that was started and never completed.

    Attributes:
        age: Seconds by the server's clock; None if unknown.
        ours: Whether this machine started it.
        because: Why it is kept, or empty.
    """

    bucket: str
    key: bytes
    begun: str
    age: float | None
    ours: bool
    result: CleanupResult
    because: str = ""


def problem_from(found: Any) -> Problem:
    """Return the problem that an agent reports as [code, message, again]."""
    try:
        code, message, again = found
        return Problem(str(code), message_of(str(code), str(message)), retryable=bool(again))
    except (TypeError, ValueError):
        return Problem("failed", "the agent gave no reason")


def of_target(_: Entry) -> bool:
    """Reject the known files that a target does not list: they can be sent again, or no transfer can name them."""
    return False
