"""When something at a place last moved: the lines of all journals that tell of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hibali.text import path_from_fields
from transfers.entry import Proof, weakest
from transfers.history.journals import journal_of
from transfers.history.operation import Operation, Place


class Way(StrEnum):
    """What an operation did with it, seen from the place that is asked about."""

    ARRIVED = "arrived"
    LEFT = "left"
    DELETED = "deleted"
    LOOKED_AT = "verified"


@dataclass(slots=True)
class Move:
    """What one operation did at a place: `proof` is the weakest among its files, `sha256` that of the one file."""

    operation: Operation
    way: Way
    files: int = 0
    bytes: int = 0
    failed: int = 0
    proof: str | None = None
    sha256: str | None = None

    def take(self, record: dict[str, Any]) -> None:
        """One more file of it."""
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
                proof = Proof(record["proof"])
                self.proof = str(proof if self.proof is None else weakest(Proof(self.proof), proof))


def moves_of(wanted: Iterable[Place], operations: Iterable[Operation]) -> Iterator[Move]:
    """What was done at these places or below them (one place, as it may be written), in the order of the operations."""
    places = list(wanted)
    for operation in operations:
        arrived = _way(operation.place, places)
        left = _way(operation.origin, places) if arrived is None else None
        below = arrived if arrived is not None else left
        if below is None:
            continue
        if operation.operation == "verify":
            if below == b"":
                yield _verified(operation)
        else:
            yield from _read_moves(operation, below, Way.LEFT if arrived is None else Way.ARRIVED)


def _way(place: Place | None, wanted: list[Place]) -> bytes | None:
    if place is None:
        return None
    return next((way for each in wanted if (way := place.way_to(each)) is not None), None)


def _verified(operation: Operation) -> Move:
    receipt = operation.receipt or {}
    counts = (operation.number("files"), operation.number("bytes"), operation.number("files_failed"))
    return Move(operation, Way.LOOKED_AT, *counts, proof=receipt.get("proof_tree"))


def _read_moves(operation: Operation, below: bytes, way: Way) -> list[Move]:
    moved, deleted = Move(operation, way), Move(operation, Way.DELETED)
    for record in lines_below(operation.id, below):
        kind = record.get("kind")
        if kind == "deleted" and way is Way.ARRIVED:
            deleted.take(record)
        elif kind in {"moved", "linked", "failed"}:
            moved.take(record)
    return [each for each in (moved, deleted) if each.files or each.failed]


def lines_below(operation: str, below: bytes) -> Iterator[dict[str, Any]]:
    """The lines of its journal about a file, or about what is below a folder; b"" is everything.

    Only lines in which the name stands are parsed: a journal may have millions.
    """
    needle = _needle(below)
    with journal_of(operation).open("rb") as stream:
        for line in stream:
            if needle not in line and b'"path_base64"' not in line:
                continue
            try:
                record = json.loads(line)
                path = path_from_fields(record)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # torn, or about no file
            if not below or path == below or path.startswith(below + b"/"):
                yield record


def _needle(below: bytes) -> bytes:
    """What every line about it holds: its name as JSON, without the closing quote; a name that is not UTF-8 is in base64."""
    try:
        text = json.dumps(below.decode("utf-8"))
    except UnicodeDecodeError:
        return b'"path_base64"'
    return b'"path":' + text[:-1].encode("ascii")
