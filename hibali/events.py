"""Define events as frozen records; progress, logs, JSON lines and receipts are built from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listing:
    """All places are reached, and what they hold is being listed; nobody is asked for a password from here on."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan is complete: how much there is in all and how much of it has to move."""

    files: int
    bytes: int
    files_to_move: int
    bytes_to_move: int
    files_kept: int
    files_to_delete: int


@dataclass(frozen=True, slots=True)
class Hashing:
    """What is there is listed, and so much of it is going to be hashed; `Carried` tells how far that is."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Moved:
    """One entry stands at the target under its final name, proven as said."""

    path: bytes
    kind: str
    size: int
    digest: str | None
    proof: str
    mtime_ns: int
    mode: int = -1
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Grown:
    """An append-only file stands at the target up to `size`, proven as said; its source may go on growing."""

    path: bytes
    size: int
    bytes_added: int
    digest: str
    proof: str
    mtime_ns: int
    mode: int = -1


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes have left: progress within and before entries that are not landed yet."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Carrying:
    """Of one large file's `size` bytes the first `bytes` have left; the first `begun` of them stood there before."""

    path: bytes
    begun: int
    bytes: int
    size: int


@dataclass(frozen=True, slots=True)
class Connected:
    """So many lines to a place carry data now, and so many logins were made for them."""

    subject: str
    lines: int
    logins: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """One entry is gone from the target."""

    path: bytes
    kind: str


@dataclass(frozen=True, slots=True)
class Adjusted:
    """One entry that stood at the target, or just landed, has the permissions it is to have; no bytes moved."""

    path: bytes
    kind: str


@dataclass(frozen=True, slots=True)
class Linked:
    """One name stands at the target as a further name of the file `same_as`; no bytes moved."""

    path: bytes
    same_as: bytes


@dataclass(frozen=True, slots=True)
class Packed:
    """A tar file with so many members stands at the target beside its index; its sha256 is `digest`."""

    path: bytes
    size: int
    members: int
    digest: str


@dataclass(frozen=True, slots=True)
class Failed:
    """One entry was not done, and why, in words and as a stable code."""

    path: bytes
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Unverified:
    """One file could not be verified, and why: nothing is known to compare it with."""

    path: bytes
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """One file that stood at the target was compared by sha256 at both ends, and its digest was missing in the record."""

    path: bytes
    size: int
    digest: str
    proof: str
    mtime_ns: int
    mode: int = -1
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Retried:
    """Something is tried again after a pause."""

    subject: str
    attempt: int
    wait_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Round:
    """While a source is followed, one look at it found something to do, and that is done.

    `files` and `bytes` are the source now, `*_moved` what landed in this round, `files_waiting` what is not finished yet, and
    `files_failed` what could not be sent so far.
    """

    number: int
    files: int
    bytes: int
    files_moved: int
    bytes_moved: int
    files_waiting: int
    files_failed: int


@dataclass(frozen=True, slots=True)
class Noted:
    """Something a person should read once; what is `kept` stands in the operation's journal, too, for those who ask later."""

    message: str
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more comes of this operation."""


Event = (
    Listing
    | Planned
    | Hashing
    | Moved
    | Grown
    | Carried
    | Carrying
    | Connected
    | Deleted
    | Adjusted
    | Linked
    | Packed
    | Failed
    | Unverified
    | Recorded
    | Retried
    | Round
    | Noted
    | Ended
)
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""
    del event
