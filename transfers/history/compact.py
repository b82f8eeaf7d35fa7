"""Old journals made shorter: lines that newer ones made meaningless go, receipts and what verifies a place stay."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hibali.errors import IncompleteError
from hibali.ledger import now, write_atomic
from hibali.strict_json import line_of_json
from hibali.system_errors import reason_of
from hibali.text import path_from_fields
from transfers.history.journals import journal_of
from transfers.history.operation import Operation, Place


@dataclass(frozen=True, slots=True)
class Compacted:
    """What became of one journal, or would become of it: how many of its lines go, and how many bytes they take."""

    operation: Operation
    lines: int
    bytes: int


def compact(operations: Iterable[Operation], before: float, *, dry: bool) -> Iterator[Compacted]:
    """Shorten the journals of operations that began before then (seconds since the epoch) and have a receipt.

    A line about a file goes where a newer operation moved or deleted the same file: it takes part in nothing any more. So do
    the lines of old failures, which the receipt counts. Each journal is replaced whole or not at all. The newest line about
    each file stays, and with it what `verify` compares a place with. Raises `IncompleteError`.
    """
    newer = _Newer()
    for operation in sorted(operations, key=lambda each: (each.began, each.id), reverse=True):
        old = operation.moment < before and operation.receipt is not None
        path = journal_of(operation.id)
        lines = path.read_bytes().splitlines(keepends=True)
        kept, dropped = _sort_out(lines, operation, newer)
        if old and dropped:
            size = sum(len(line) for line in dropped)
            if not dry:
                _replace(operation, kept, len(dropped))
            yield Compacted(operation, len(dropped), size)


class _Newer:
    """The files that operations looked at so far wrote or deleted, and those that others are names of; 16 bytes for each."""

    def __init__(self) -> None:
        self._written: set[bytes] = set()
        self._needed: set[bytes] = set()

    def judge(self, place: Place, record: dict[str, Any]) -> bool:
        """Whether the line may go; it counts for older ones from here on."""
        kind = record.get("kind")
        if kind == "failed":
            return True
        if kind not in {"moved", "recorded", "deleted", "linked"}:
            return False
        key = _key(place, path_from_fields(record))
        if kind == "linked":
            self._needed.add(_key(place, path_from_fields(record, "same_as")))
        overtaken = key in self._written and key not in self._needed
        self._written.add(key)
        return overtaken


def _key(place: Place, path: bytes) -> bytes:
    whole = b"/".join(part for part in (place.path.rstrip(b"/"), path) if part)
    text = b"\0".join((place.site.encode(), (place.bucket or "").encode(), whole))
    return hashlib.blake2b(text, digest_size=16).digest()


def _sort_out(lines: Iterable[bytes], operation: Operation, newer: _Newer) -> tuple[list[bytes], list[bytes]]:
    """Those that stay and those that go, in their order, judged from the last to the first."""
    kept: list[bytes] = []
    dropped: list[bytes] = []
    for line in reversed(list(lines)):
        record = _read(line)
        go = operation.place is not None and record is not None and newer.judge(operation.place, record)
        (dropped if go else kept).append(line)
    return kept[::-1], dropped[::-1]


def _read(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
        if isinstance(record, dict):
            if record.get("kind") in {"moved", "recorded", "deleted", "linked"}:
                path_from_fields(record)
            return record
    except (ValueError, KeyError):
        pass
    return None


def _replace(operation: Operation, kept: list[bytes], lines: int) -> None:
    """The journal with a line that says what is missing; it keeps its time, by which others find what is recent."""
    path = journal_of(operation.id)
    note = line_of_json({"kind": "compacted", "at": now(), "lines": lines}).encode("ascii") + b"\n"
    try:
        stamp = path.stat().st_mtime_ns
        write_atomic(path, kept[0] + note + b"".join(kept[1:]), mtime_ns=stamp)
    except OSError as problem:
        raise IncompleteError(
            "ledger-unwritable", f"the ledger cannot be written: {reason_of(problem)}", about=str(path)
        ) from None
