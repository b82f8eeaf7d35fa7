"""Define events as frozen records; progress, logs, JSON lines and receipts are built from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Listing:
    """All endpoints are open and are being listed; from now on, no password prompt appears."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan is complete: the totals, and how much of them has to move."""

    files: int
    bytes: int
    files_to_move: int
    bytes_to_move: int
    files_kept: int
    files_to_delete: int


@dataclass(frozen=True, slots=True)
class Hashing:
    """The listing is complete, and this much will be hashed; `Carried` reports the progress."""

    files: int
    bytes: int


class Moved(NamedTuple):  # made in a quarter of the time of a dataclass, and there are millions of them
    """One entry has its final name at the target; `proof` says how it was verified."""

    path: bytes
    kind: str
    size: int
    digest: str | None
    proof: str
    mtime_ns: int
    mode: int = -1
    etag: str | None = None
    inode: int = 0  # at the target; 0 if unknown
    renamed_from: bytes = b""  # its path at the source, if that is another one


@dataclass(frozen=True, slots=True)
class Grown:
    """An append-only file is complete at the target up to `size`, verified by `proof`; its source may continue to grow."""

    path: bytes
    size: int
    bytes_added: int
    digest: str
    proof: str
    mtime_ns: int
    mode: int = -1


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes were sent: progress of entries that are not committed yet; `worker` is the number of the process or task, 0 for this process."""

    bytes: int
    worker: int = 0


@dataclass(frozen=True, slots=True)
class Carrying:
    """Progress of one large file: the first `bytes` of its `size` were sent; the first `begun` were at the target before."""

    path: bytes
    begun: int
    bytes: int
    size: int


@dataclass(frozen=True, slots=True)
class Connected:
    """The number of connections that carry data to a host now, and of the logins made for them."""

    subject: str
    lines: int
    logins: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """One entry was deleted at the target."""

    path: bytes
    kind: str


@dataclass(frozen=True, slots=True)
class Removed:
    """One entry was removed at the source, because it was proven at the target (--move)."""

    path: bytes
    kind: str


@dataclass(frozen=True, slots=True)
class Adjusted:
    """The permissions of one entry at the target were set; no bytes moved."""

    path: bytes
    kind: str


@dataclass(frozen=True, slots=True)
class Linked:
    """One name at the target is a hard link to the file `same_as`; no bytes moved."""

    path: bytes
    same_as: bytes
    renamed_from: bytes = b""  # as of what is moved


@dataclass(frozen=True, slots=True)
class Packed:
    """A tar file with this number of members and its index are at the target; its sha256 is `digest`."""

    path: bytes
    size: int
    members: int
    digest: str


@dataclass(frozen=True, slots=True)
class Failed:
    """One entry failed, with the reason as a message and as a stable code."""

    path: bytes
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Unverified:
    """One file could not be verified, and why: no digest is known to compare it with."""

    path: bytes
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """One existing file was compared by sha256 at both ends, and its digest was missing in the record."""

    path: bytes
    size: int
    digest: str
    proof: str
    mtime_ns: int
    mode: int = -1
    etag: str | None = None
    inode: int = 0  # at the target; 0 if unknown


@dataclass(frozen=True, slots=True)
class Retried:
    """hibali retries after a pause."""

    subject: str
    attempt: int
    wait_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Round:
    """One sync cycle of a followed source that found something to do is complete.

    `files` and `bytes` are the source now, `*_moved` what moved in this cycle, `files_waiting` what is not finished yet, and
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
    """A note for the user; a `kept` one is also written to the operation's journal."""

    message: str
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The operation ended; it is the last event."""


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
    | Removed
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
    """Ignore an event."""
    del event
