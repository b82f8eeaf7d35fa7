"""Read operations from their journals: results, moved files, and unverified files."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from hibali.errors import Exit, NotFoundError
from hibali.files import open_regular
from hibali.ledger import find_identifier, ledger_folder, read_records, records_in, seconds_of
from hibali.plugins import if_offered
from hibali.text import path_fields, path_from_fields, printable
from hibali.unreadable import unreadable
from transfers.history.rates import Rates, parse_rates
from transfers.history.running import is_running
from transfers.model.entry import Verification, weakest


class Result(StrEnum):
    """The result of an operation."""

    DONE = "done"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    LATER = "later"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    UNDER_WAY = "under-way"
    UNFINISHED = "unfinished"


RESULTS: dict[int, Result] = {
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
class OperationRoot:
    """A root as its store knows it; `bucket` is None for sites without buckets."""

    site: str
    bucket: str | None
    path: bytes

    def path_to(self, other: OperationRoot) -> bytes | None:
        """Return the path of `other` relative to this one: b"" for the same or a parent.

        None if unrelated.
        """
        if self.site != other.site or self.bucket != other.bucket:
            return None
        own_path, other_path = self.path.rstrip(b"/"), other.path.rstrip(b"/")
        if not other_path or own_path == other_path or own_path.startswith(other_path + b"/"):
            return b""
        if not own_path or other_path.startswith(own_path + b"/"):
            return other_path[len(own_path) :].lstrip(b"/")
        return None

    def holds(self, other: OperationRoot) -> bool:
        """Return whether `other` is this root or below it."""
        return other.path_to(self) == b""


@dataclass(frozen=True, slots=True)
class Operation:
    """A recorded operation.

    `began` is RFC 3339; `origin` and `place` are None for a call that never reached them, and for old
    journals. `receipt` is None while it is `running`, and for one that was killed; `stopped` has the fields of
    the error that ended it. `touched` is when its journal was last written, in seconds since the epoch.
    `schedule` and `firing` are those that it belongs to, None where a user started it.
    """

    id: str
    operation: str
    began: str
    source: str
    target: str
    origin: OperationRoot | None = None
    place: OperationRoot | None = None
    receipt: Mapping[str, Any] | None = None
    stopped: Mapping[str, Any] | None = None
    touched: float = 0.0
    compacted: bool = False
    schedule: str | None = None
    firing: str | None = None
    sites: frozenset[str] = field(default=frozenset(), compare=False)
    running: bool = field(default=False, compare=False)

    def result(self) -> Result:
        """Return its result."""
        if self.receipt is None:
            return Result.UNDER_WAY if self.running else Result.UNFINISHED
        return RESULTS.get(self.number("exit"), Result.FAILED)

    def number(self, name: str) -> int:
        """Return a count of its receipt; 0 without one."""
        value = (self.receipt or {}).get(name)
        return value if isinstance(value, int) else 0

    @property
    def seconds(self) -> float:
        """The duration; 0 if unknown."""
        value = (self.receipt or {}).get("seconds")
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def exit(self) -> int | None:
        """The exit code; None without a receipt."""
        return None if self.receipt is None else self.number("exit")

    @property
    def was_mistyped(self) -> bool:
        """Whether a user typed something wrong (usage, or a missing source) or declined a question, and nothing moved."""
        wrong = self.exit in {Exit.USAGE, Exit.NOT_FOUND} and not self.number("files_moved")
        declined = self.exit == Exit.REFUSED and (self.stopped or {}).get("code") == "unconfirmed"
        return (wrong or declined) and self.schedule is None

    @property
    def amount(self) -> tuple[int, int]:
        """The number of files that it moved, compared or removed, and their bytes."""
        if self.operation == "verify":
            return self.number("files"), self.number("bytes")
        if self.operation in {"rm", "drop"}:
            return self.number("files_deleted"), 0
        return self.number("files_moved"), self.number("bytes_moved")

    @property
    def proof_moved(self) -> str | None:
        """The weakest verification of the moved files."""
        value = (self.receipt or {}).get("proof_moved")
        return value if isinstance(value, str) else None

    @property
    def moment(self) -> float:
        """The start, in seconds since the epoch."""
        return seconds_of(self.began) or self.touched


def begin(record: Mapping[str, Any]) -> Operation | None:
    """Read the operation from a journal's first line; None for any other line."""
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


def read_place(record: Mapping[str, Any]) -> OperationRoot | None:
    """Read a line of kind `place` or `origin`; None for an empty one."""
    bucket = record.get("bucket")
    try:
        return OperationRoot(
            str(record["site"]),
            None if bucket is None else str(bucket),
            path_from_fields(dict(record), "place"),
        )
    except (KeyError, ValueError):
        return None


def place_fields(place: OperationRoot) -> dict[str, Any]:
    """Return the fields that `read_place` reads."""
    return {"site": place.site, "bucket": place.bucket, **path_fields(place.path, "place")}


def _site_of(text: str) -> str:
    """Return the site in a location; empty for a local path."""
    return text.partition(":")[0] if ":" in text.partition("/")[0] else ""


# bytes at the start and the end of a journal: they include the lines before the first and after the last file
_END = 64 * 1024
_BEFORE_FILES = frozenset({"operation", "origin", "place", "selection", "empty", "compacted"})


def journal_of(operation: str) -> Path:
    """Return the path of its journal; a part of the id is enough.

    Raises `NotFoundError` for an unknown id, `UsageError` for an ambiguous part.
    """
    folder = ledger_folder("operations")
    found = find_identifier(folder, operation)
    if found is None:
        raise no_such_operation(operation)
    return folder / f"{found}.jsonl"


def no_such_operation(operation: str) -> NotFoundError:
    """Return the error for an unknown id."""
    return NotFoundError(
        "no-such-operation",
        "the ledger has no operation with this id",
        subject=printable(operation),
        hint=if_offered("history", "To list operations: hibali history"),
    )


def read_operation(path: Path) -> Operation:
    """Read an operation from its journal. Raises OSError, and `UnreadableStateError` for another content."""
    with os.fdopen(open_regular(path), "rb") as stream:
        touched = os.fstat(stream.fileno()).st_mtime
        first = stream.read(_END)
        size = stream.seek(0, os.SEEK_END)
        last = first
        if size > _END:
            stream.seek(size - _END)
            last = stream.read()
    try:
        operation = _read_begin(first, touched)
        if operation is not None:
            operation = _read_end(operation, last)
            return replace(operation, running=operation.receipt is None and is_running(operation.id))
    except (LookupError, ValueError, TypeError, AttributeError):
        pass
    raise unreadable(path, "the record of this operation is damaged")


def read_rates(operation: str) -> Rates | None:
    """Return what an ended operation carried over time, from the end of its journal; None for a short one, and of older versions."""
    with os.fdopen(open_regular(journal_of(operation)), "rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _END))
        records = records_in(stream.read().splitlines()[-3:])
    return next((parse_rates(record) for record in records if record.get("kind") == "rates"), None)


def _read_begin(text: bytes, touched: float) -> Operation | None:
    records = records_in(text.splitlines())
    operation = begin(next(records, {}))
    if operation is None:
        return None
    found: dict[str, Any] = {"touched": touched}
    for record in records:
        kind = record.get("kind")
        if kind in {"origin", "place"}:
            found.setdefault(kind, read_place(record))  # a rename names its former place last
        elif kind == "compacted":
            found["compacted"] = True
        elif kind not in _BEFORE_FILES and "place" in found:
            break
    places = (found.get("origin"), found.get("place"))
    sites = operation.sites | frozenset(place.site for place in places if place is not None)
    return replace(operation, sites=sites, **found)


def _read_end(operation: Operation, text: bytes) -> Operation:
    found: dict[str, Any] = {}
    for record in records_in(text.splitlines()[-2:]):
        if record.get("kind") in {"receipt", "stopped"}:
            found[record["kind"]] = record
    return replace(operation, **found)


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on operations; None is no condition; times are in seconds since the epoch."""

    site: str | None = None
    schedule: str | None = None
    results: Collection[Result] | None = None
    since: float | None = None
    until: float | None = None

    def matches(self, operation: Operation) -> bool:
        """Return whether the operation satisfies all conditions."""
        return (
            (self.site is None or self.site in operation.sites)
            and (self.schedule is None or operation.schedule == self.schedule)
            and (not self.results or operation.result() in self.results)
            and (self.since is None or operation.moment >= self.since)
            and (self.until is None or operation.moment < self.until)
        )

    def choose(self, operations: Iterable[Operation]) -> list[Operation]:
        """Return the operations that satisfy the filter, in the same order."""
        return [each for each in operations if self.matches(each)]


class FileChange(StrEnum):
    """The change of a file by an operation, as seen from the requested root."""

    ARRIVED = "arrived"
    LEFT = "left"
    DELETED = "deleted"
    VERIFIED = "verified"


@dataclass(slots=True)
class Move:
    """The changes by one operation at a root; `proof` is the weakest verification, `sha256` that of a single file."""

    operation: Operation
    change: FileChange
    files: int = 0
    bytes: int = 0
    failed: int = 0
    proof: str | None = None
    sha256: str | None = None

    def add(self, record: dict[str, Any]) -> None:
        """Add one file."""
        kind = record.get("kind")
        if kind == "failed":
            self.failed += 1
        elif kind == "deleted" and record.get("entry") != "folder":
            self.files += 1
        elif kind == "linked" or (kind == "moved" and record.get("entry") != "folder"):
            self.files += 1
            self.bytes += int(record.get("size") or 0)
            self.sha256 = record.get("sha256") if self.files == 1 else None
            if record.get("proof"):
                proof = Verification(record["proof"])
                self.proof = str(proof if self.proof is None else weakest(Verification(self.proof), proof))


def moves_of(wanted: Iterable[OperationRoot], operations: Iterable[Operation]) -> Iterator[Move]:
    """Yield what operations did at or below these roots (spellings of one root), in their order."""
    places = list(wanted)
    for operation in operations:
        arrived = _path_in(operation.place, places)
        left = _path_in(operation.origin, places) if arrived is None else None
        below = arrived if arrived is not None else left
        if below is None:
            continue
        if operation.operation == "verify":
            if below == b"":
                yield _verified(operation)
        else:
            yield from _read_moves(
                operation, below, FileChange.LEFT if arrived is None else FileChange.ARRIVED
            )


def _path_in(place: OperationRoot | None, wanted: list[OperationRoot]) -> bytes | None:
    if place is None:
        return None
    return next((change for each in wanted if (change := place.path_to(each)) is not None), None)


def _verified(operation: Operation) -> Move:
    receipt = operation.receipt or {}
    counts = (operation.number("files"), operation.number("bytes"), operation.number("files_failed"))
    return Move(operation, FileChange.VERIFIED, *counts, proof=receipt.get("proof_tree"))


def _read_moves(operation: Operation, below: bytes, change: FileChange) -> list[Move]:
    moved, deleted = Move(operation, change), Move(operation, FileChange.DELETED)
    for record in lines_below(operation.id, below):
        kind = record.get("kind")
        if kind == "deleted" and change is FileChange.ARRIVED:
            deleted.add(record)
        elif kind in {"moved", "linked", "failed"}:
            moved.add(record)
    return [each for each in (moved, deleted) if each.files or each.failed]


def lines_below(operation: str, below: bytes) -> Iterator[dict[str, Any]]:
    """Yield the journal lines about a file, or about the content of a folder; b"" for everything.

    Only lines that contain the name are parsed: a journal may have millions.
    """
    needle = _needle(below)
    with os.fdopen(open_regular(journal_of(operation)), "rb") as stream:
        for line in stream:
            if needle not in line and b'"path_base64"' not in line:
                continue
            try:
                record = json.loads(line)
                path = path_from_fields(record)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue  # cut short, or not about a file
            if not below or path == below or path.startswith(below + b"/"):
                yield record


def _needle(below: bytes) -> bytes:
    """Return a string that all lines about the path have: its start in JSON, or the base64 field's name."""
    try:
        text = json.dumps(below.decode("utf-8"))
    except UnicodeDecodeError:
        return b'"path_base64"'
    return b'"path":' + text[:-1].encode("ascii")


VERIFIED = frozenset({"digest", "recorded", None})


@dataclass(slots=True)
class UnverifiedFiles:
    """The unverified files of one target: their number, bytes, and weakest verification."""

    site: str
    target: str
    proof: str
    files: int = 0
    bytes: int = 0


def find_unverified(operations: Sequence[Operation]) -> list[UnverifiedFiles]:
    """Find files that moved without verification and were not moved with it, deleted or verified since.

    The largest first. Only journals of operations with such files are read, and later ones at
    the same places.
    """
    weak: dict[tuple[str, str | None, bytes], tuple[str, str, int]] = {}
    places: list[OperationRoot] = []
    for operation in operations:
        place = operation.place
        if place is None or (operation.operation in {"rm", "drop"} and not weak):
            continue
        if operation.operation == "verify":
            if operation.exit == 0 and (operation.receipt or {}).get("proof_tree") in {"digest", "recorded"}:
                weak = {key: each for key, each in weak.items() if not place.holds(OperationRoot(*key))}
            continue
        if operation.proof_moved not in VERIFIED:
            places.append(place)
        elif not any(place.path_to(each) is not None for each in places):
            continue
        _fold(weak, operation, place)
    return _by_target(weak.values(), weak)


def _fold(
    weak: dict[tuple[str, str | None, bytes], tuple[str, str, int]],
    operation: Operation,
    place: OperationRoot,
) -> None:
    root = place.path.rstrip(b"/")
    for record in read_records(journal_of(operation.id)):
        kind = record.get("kind")
        if kind not in {"moved", "recorded", "deleted"}:
            continue
        path = path_from_fields(record)
        key = (place.site, place.bucket, root + b"/" + path if root else path)
        weak.pop(key, None)
        if kind == "moved" and record.get("entry") == "file" and record.get("proof") not in VERIFIED:
            weak[key] = (operation.target, str(record["proof"]), int(record.get("size") or 0))


def _by_target(
    found: Iterable[tuple[str, str, int]], keys: Iterable[tuple[str, str | None, bytes]]
) -> list[UnverifiedFiles]:
    together: dict[tuple[str, str, str], UnverifiedFiles] = {}
    for (target, proof, size), (site, _, _) in zip(found, keys, strict=True):
        each = together.setdefault((site, target, proof), UnverifiedFiles(site, target, proof))
        each.files += 1
        each.bytes += size
    return sorted(together.values(), key=lambda each: -each.bytes)
