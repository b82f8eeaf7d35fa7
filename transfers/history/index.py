"""Index all operations of the ledger, and compact old journals."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hibali.documents import line_of_json
from hibali.errors import HibaliError, IncompleteError
from hibali.files import write_atomic
from hibali.ledger import ledger_folder, now, read_records
from hibali.system_errors import reason_of
from hibali.text import path_from_fields
from transfers.history.operations import (
    Operation,
    OperationRoot,
    journal_of,
    no_such_operation,
    place_fields,
    read_operation,
    read_place,
)

_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Known:
    """The cached result of a journal with this size and modification time."""

    size: int
    mtime_ns: int
    operation: Operation


def read_operations() -> list[Operation]:
    """Return every operation, oldest first.

    A journal that did not change since the last call is not read again.
    """
    folder = ledger_folder("operations")
    cache = ledger_folder("history") / "operations.jsonl"
    known = _read_cache(cache)
    found: dict[str, _Known] = {}
    for entry in os.scandir(folder):
        if entry.name.endswith(".jsonl"):
            with contextlib.suppress(OSError):
                now = entry.stat(follow_symlinks=False)
                earlier = known.get(entry.name)
                if earlier is not None and (earlier.size, earlier.mtime_ns) == (now.st_size, now.st_mtime_ns):
                    found[entry.name] = earlier
                elif (operation := read_operation(Path(entry.path))) is not None:
                    found[entry.name] = _Known(now.st_size, now.st_mtime_ns, operation)
    if found != known:
        _write_cache(cache, found)
    return sorted((each.operation for each in found.values()), key=lambda each: (each.began, each.id))


def _read_cache(path: Path) -> dict[str, _Known]:
    known: dict[str, _Known] = {}
    records: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        records.extend(read_records(path))
    if records[:1] != [_HEADER]:
        return {}
    for record in records[1:]:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            known[str(record["name"])] = _Known(
                int(record["size"]), int(record["mtime_ns"]), _read_fields(record["operation"])
            )
    return known


def _write_cache(path: Path, found: Mapping[str, _Known]) -> None:
    """Write the cache; a full disk is ignored."""
    lines = [line_of_json(_HEADER)]
    lines += (
        line_of_json(
            {"name": name, "size": each.size, "mtime_ns": each.mtime_ns, "operation": _fields(each.operation)}
        )
        for name, each in found.items()
    )
    with contextlib.suppress(OSError, HibaliError):
        write_atomic(path, "".join(f"{line}\n" for line in lines).encode("ascii"))


def _fields(operation: Operation) -> dict[str, Any]:
    return {
        **{each.name: getattr(operation, each.name) for each in fields(operation)},
        "origin": None if operation.origin is None else place_fields(operation.origin),
        "place": None if operation.place is None else place_fields(operation.place),
        "sites": sorted(operation.sites),
    }


def _read_fields(record: dict[str, Any]) -> Operation:
    roots = {key: record[key] and read_place(record[key]) for key in ("origin", "place")}
    return Operation(**{**record, **roots, "sites": frozenset(record["sites"])})


_HEADER = {"kind": "history-cache", "version": _VERSION}


_MOST_FAILURES = 1000


@dataclass(slots=True)
class OperationDetails:
    """An operation in full.

    Attributes:
        files: the number of journal lines by kind.
        verifications: the number of moved files by verification.
        failures: the first thousand.
        notes: such as the id of its Globus task.
    """

    operation: Operation
    files: Counter[str] = field(default_factory=Counter)
    verifications: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        """The rate in bytes per second; None if nothing moved."""
        moved, seconds = self.operation.number("bytes_moved"), self.operation.seconds
        return moved / seconds if moved and seconds else None


def read_details(identifier: str) -> OperationDetails:
    """Read everything recorded about an operation. Raises `NotFoundError`."""
    path = journal_of(identifier)
    operation = read_operation(path)
    if operation is None:
        raise no_such_operation(identifier)
    details = OperationDetails(operation)
    for record in read_records(path):
        kind = record.get("kind")
        if kind == "noted":
            details.notes.append(str(record.get("message")))
        if kind in {"moved", "deleted", "linked", "failed"} and record.get("entry") != "folder":
            details.files[str(kind)] += 1
            if record.get("proof"):
                details.verifications[str(record["proof"])] += 1
            if kind == "failed" and len(details.failures) < _MOST_FAILURES:
                details.failures.append(record)
    return details


@dataclass(frozen=True, slots=True)
class Compacted:
    """The (planned) result for one journal: the number of removed lines and their bytes."""

    operation: Operation
    lines: int
    bytes: int


def compact(operations: Iterable[Operation], before: float, *, dry: bool) -> Iterator[Compacted]:
    """Shorten the journals of operations with a receipt that started before `before` (epoch seconds).

    A line about a file is removed if a newer operation moved or deleted the same file, because nothing uses
    it any more. So are the lines of old failures, which the receipt counts. Each journal is replaced
    atomically. The newest line about each file is kept, because `verify` compares with it. Raises
    `IncompleteError`.
    """
    newer = _Newer()
    for operation in sorted(operations, key=lambda each: (each.began, each.id), reverse=True):
        old = operation.moment < before and operation.receipt is not None
        path = journal_of(operation.id)
        lines = path.read_bytes().splitlines(keepends=True)
        kept_lines, dropped = _split_lines(lines, operation, newer)
        if old and dropped:
            size = sum(len(line) for line in dropped)
            if not dry:
                _replace(operation, kept_lines, len(dropped))
            yield Compacted(operation, len(dropped), size)


class _Newer:
    """Files that newer operations wrote or deleted, or that have further names; 16 bytes for each."""

    def __init__(self) -> None:
        self._written: set[bytes] = set()
        self._needed: set[bytes] = set()

    def judge(self, place: OperationRoot, record: dict[str, Any]) -> bool:
        """Return whether the line may be removed, and remember its file for older lines."""
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


def _key(place: OperationRoot, path: bytes) -> bytes:
    whole = b"/".join(part for part in (place.path.rstrip(b"/"), path) if part)
    text = b"\0".join((place.site.encode(), (place.bucket or "").encode(), whole))
    return hashlib.blake2b(text, digest_size=16).digest()


def _split_lines(
    lines: Iterable[bytes], operation: Operation, newer: _Newer
) -> tuple[list[bytes], list[bytes]]:
    """Split the lines into kept and removed ones, judged from the last to the first."""
    kept_lines: list[bytes] = []
    dropped: list[bytes] = []
    for line in reversed(list(lines)):
        record = _read(line)
        go = operation.place is not None and record is not None and newer.judge(operation.place, record)
        (dropped if go else kept_lines).append(line)
    return kept_lines[::-1], dropped[::-1]


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


def _replace(operation: Operation, kept_lines: list[bytes], lines: int) -> None:
    """Replace the journal, with a note; its modification time is kept, by which recent ones are found."""
    path = journal_of(operation.id)
    note = line_of_json({"kind": "compacted", "at": now(), "lines": lines}).encode("ascii") + b"\n"
    try:
        stamp = path.stat().st_mtime_ns
        write_atomic(path, kept_lines[0] + note + b"".join(kept_lines[1:]), mtime_ns=stamp)
    except OSError as problem:
        raise IncompleteError(
            "ledger-unwritable", f"the ledger cannot be written: {reason_of(problem)}", subject=str(path)
        ) from None
