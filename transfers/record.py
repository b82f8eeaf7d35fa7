"""What the ledger knows of a place: the digests of its files as earlier calls proved them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.ledger import ledger_folder, read_records
from hibali.locations import Location
from hibali.text import path_from_fields


@dataclass(frozen=True, slots=True)
class Expected:
    """What a file should be: its sha256 in hexadecimal, its size, and what else was recorded when it landed."""

    digest: str
    size: int
    mtime_ns: int = 0
    mode: int = -1
    etag: str | None = None


def recorded_digests(location: Location, where: bytes) -> dict[bytes, Expected]:
    """Path to digest, folded over every operation that wrote at, above or below `where` there, oldest first.

    Paths are relative to `where`, the root as its store knows it; b"" is a file of that very name.
    """
    known: dict[bytes, Expected] = {}
    for journal in sorted(ledger_folder("operations").glob("*.jsonl"), key=_began):
        records = read_records(journal)
        prefix: tuple[bytes, bytes] | None = None
        for record in records:
            if record.get("kind") == "place":
                same = record.get("site") == location.site.name and record.get("bucket") == location.bucket
                prefix = relation(path_from_fields(record, "place"), where) if same else None
                if prefix is None:
                    break
            elif prefix is not None and record.get("kind") == "empty":
                _forget(known, *prefix)
            elif prefix is not None:
                _fold(known, record, *prefix)
    return known


def _began(journal: Path) -> tuple[str, str]:
    """When an operation began, to the microsecond: names alone order to the second."""
    first = next(read_records(journal), {})
    return str(first.get("at", "")), journal.name


def relation(place: bytes, wanted: bytes) -> tuple[bytes, bytes] | None:
    """What to put before and what to take from a recorded path to make it relative to `wanted`; None when apart."""
    place, wanted = place.rstrip(b"/"), wanted.rstrip(b"/")
    if place == wanted:
        return b"", b""
    if not wanted or place.startswith(wanted + b"/"):
        return place[len(wanted) :].lstrip(b"/") + b"/", b""
    if not place or wanted.startswith(place + b"/"):
        return b"", wanted[len(place) :].lstrip(b"/")
    return None


def _forget(known: dict[bytes, Expected], before: bytes, below: bytes) -> None:
    """The place was found empty: what was recorded there before is gone, and nobody's loss."""
    for path in [path for path in known if below or path.startswith(before)]:
        del known[path]


def _relative(path: bytes, before: bytes, below: bytes) -> bytes | None:
    """A recorded path relative to the root that is asked about; None for one that is not in it."""
    if below:
        if path == below:
            path = b""
        elif path.startswith(below + b"/"):
            path = path[len(below) + 1 :]
        else:
            return None
    return before + path


def _fold(known: dict[bytes, Expected], record: dict[str, Any], before: bytes, below: bytes) -> None:
    kind = record.get("kind")
    if kind not in {"moved", "recorded", "linked", "deleted"}:
        return
    path = _relative(path_from_fields(record), before, below)
    if path is None:
        return
    if kind == "linked":
        first = known.get(_relative(path_from_fields(record, "same_as"), before, below) or b"")
        known.pop(path, None)
        if first is not None:
            known[path] = first
    elif kind == "deleted" or not record.get("sha256"):
        known.pop(path, None)
    else:
        details = (int(record.get("mtime_ns") or 0), int(record.get("mode", -1)), record.get("etag"))
        known[path] = Expected(str(record["sha256"]), int(record["size"]), *details)


def moved_by(operation: str) -> dict[bytes, Expected] | None:
    """What one operation brought to its target; None for one that is not known, or that found a part of it there already."""
    moved: dict[bytes, Expected] = {}
    receipt: dict[str, Any] = {}
    for record in read_records(ledger_folder("operations") / f"{operation}.jsonl"):
        if record.get("kind") == "receipt":
            receipt = record
        _fold(moved, record, b"", b"")
    return moved if receipt.get("files") == len(moved) and receipt.get("files_kept") == 0 else None
