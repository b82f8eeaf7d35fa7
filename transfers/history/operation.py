"""One operation as its journal tells it: what was begun, where, and how it ended; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from hibali.errors import Exit
from hibali.text import path_fields, path_from_fields

PATIENCE_SECONDS = (
    86400.0  # one that was killed looks like one that is at work: a day of silence tells them apart
)


class Result(StrEnum):
    """How an operation ended, in a word."""

    DONE = "done"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    LATER = "later"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    UNDER_WAY = "under-way"
    UNFINISHED = "unfinished"


_RESULTS: dict[int, Result] = {
    Exit.DONE: Result.DONE,
    Exit.CHANGES: Result.DONE,
    Exit.INCOMPLETE: Result.INCOMPLETE,
    Exit.NOT_VERIFIED: Result.INCOMPLETE,
    Exit.TRY_LATER: Result.LATER,
    Exit.REFUSED: Result.REFUSED,
    Exit.INTERRUPTED: Result.INTERRUPTED,
    Exit.TERMINATED: Result.INTERRUPTED,
}


@dataclass(frozen=True, slots=True)
class Place:
    """A root as its store knows it; `bucket` is None where the site has none."""

    site: str
    bucket: str | None
    path: bytes

    def way_to(self, other: Place) -> bytes | None:
        """The path of `other` relative to this one: b"" for the same or one above; None where they are apart."""
        if self.site != other.site or self.bucket != other.bucket:
            return None
        mine, theirs = self.path.rstrip(b"/"), other.path.rstrip(b"/")
        if not theirs or mine == theirs or mine.startswith(theirs + b"/"):
            return b""
        if not mine or theirs.startswith(mine + b"/"):
            return theirs[len(mine) :].lstrip(b"/")
        return None

    def holds(self, other: Place) -> bool:
        """Whether `other` is this place or lies below it."""
        return other.way_to(self) == b""


@dataclass(frozen=True, slots=True)
class Operation:
    """`began` is RFC 3339; `origin` and `place` are None for a call that never reached them, and for old journals.

    `receipt` is None while it is at work, and for one that was killed; `stopped` has the fields of the error that ended
    it. `touched` is when its journal was last written, in seconds since the epoch. `schedule` and `firing` are those that
    it worked for, None where a person typed it.
    """

    id: str
    operation: str
    began: str
    source: str
    target: str
    origin: Place | None = None
    place: Place | None = None
    receipt: Mapping[str, Any] | None = None
    stopped: Mapping[str, Any] | None = None
    touched: float = 0.0
    compacted: bool = False
    schedule: str | None = None
    firing: str | None = None
    sites: frozenset[str] = field(default=frozenset(), compare=False)

    def result(self, now: float) -> Result:
        """How it ended; `now` in seconds since the epoch."""
        if self.receipt is None:
            return Result.UNDER_WAY if now - self.touched < PATIENCE_SECONDS else Result.UNFINISHED
        return _RESULTS.get(self.number("exit"), Result.FAILED)

    def number(self, name: str) -> int:
        """A count of its receipt; 0 where there is none."""
        value = (self.receipt or {}).get(name)
        return value if isinstance(value, int) else 0

    @property
    def seconds(self) -> float:
        """How long it took; 0 where nobody knows."""
        value = (self.receipt or {}).get("seconds")
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def exit(self) -> int | None:
        """Its exit code; None without a receipt."""
        return None if self.receipt is None else self.number("exit")

    @property
    def was_mistyped(self) -> bool:
        """Whether a person typed a wrong line: usage, or a source that does not exist, before anything moved."""
        wrong = self.exit in {Exit.USAGE, Exit.NOT_FOUND} and not self.number("files_moved")
        return wrong and self.schedule is None

    @property
    def proof_moved(self) -> str | None:
        """The weakest proof among what it moved."""
        value = (self.receipt or {}).get("proof_moved")
        return value if isinstance(value, str) else None

    @property
    def moment(self) -> float:
        """When it began, in seconds since the epoch."""
        return moment_of(self.began) or self.touched


def moment_of(text: object) -> float | None:
    """Seconds since the epoch of an RFC 3339 time; None for what is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def begin(record: Mapping[str, Any]) -> Operation | None:
    """The operation that a journal's first line begins; None where it is no such line."""
    if record.get("kind") != "operation":
        return None
    source, target = str(record.get("source", "")), str(record.get("target", ""))
    named = frozenset(site for site in (_site_of(source), _site_of(target)) if site)
    return Operation(
        str(record.get("id", "")),
        str(record.get("operation", "")),
        str(record.get("at", "")),
        source,
        target,
        schedule=record.get("schedule"),
        firing=record.get("firing"),
        sites=named or frozenset({"here"}),
    )


def read_place(record: Mapping[str, Any]) -> Place | None:
    """What a line of kind `place` or `origin` says; None for one that says nothing."""
    bucket = record.get("bucket")
    try:
        return Place(
            str(record["site"]),
            None if bucket is None else str(bucket),
            path_from_fields(dict(record), "place"),
        )
    except (KeyError, ValueError):
        return None


def place_fields(place: Place) -> dict[str, Any]:
    """What `read_place` reads."""
    return {"site": place.site, "bucket": place.bucket, **path_fields(place.path, "place")}


def _site_of(text: str) -> str:
    """The site that a location names; empty for a local path."""
    return text.partition(":")[0] if ":" in text.partition("/")[0] else ""
