"""Journals read from both ends: what begins and ends an operation, without the lines of its files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hibali.errors import NotFoundError
from hibali.ledger import find_identifier, ledger_folder
from hibali.text import printable
from transfers.history.operation import Operation, begin, read_place

_END = 64 * 1024  # the lines before the first file, and those behind the last, are within so many bytes
_BEFORE_FILES = frozenset({"operation", "origin", "place", "empty", "compacted"})


def journal_of(operation: str) -> Path:
    """Where its journal is; the beginning of an id is enough.

    Raises `NotFoundError` where there is none, `UsageError` where several ids begin so.
    """
    folder = ledger_folder("operations")
    found = find_identifier(folder, operation)
    if found is None:
        raise no_such_operation(operation)
    return folder / f"{found}.jsonl"


def no_such_operation(operation: str) -> NotFoundError:
    """The error for an id that names none."""
    return NotFoundError(
        "no-such-operation",
        "there is no operation of this id in the ledger",
        about=printable(operation),
        hint="hibali history",
    )


def read_operation(path: Path) -> Operation | None:
    """What a journal says of its operation; None for a file that is no journal. Raises OSError."""
    with path.open("rb") as stream:
        touched = os.fstat(stream.fileno()).st_mtime
        first = stream.read(_END)
        size = stream.seek(0, os.SEEK_END)
        last = first
        if size > _END:
            stream.seek(size - _END)
            last = stream.read()
    operation = _read_begin(first, touched)
    return None if operation is None else _read_end(operation, last)


def _read_begin(text: bytes, touched: float) -> Operation | None:
    records = _records(text.splitlines())
    operation = begin(next(records, {}))
    if operation is None:
        return None
    found: dict[str, Any] = {"touched": touched}
    for record in records:
        kind = record.get("kind")
        if kind in {"origin", "place"}:
            found[kind] = read_place(record)
        elif kind == "compacted":
            found["compacted"] = True
        elif kind not in _BEFORE_FILES:
            break
    places = (found.get("origin"), found.get("place"))
    sites = operation.sites | frozenset(place.site for place in places if place is not None)
    return replace(operation, sites=sites, **found)


def _read_end(operation: Operation, text: bytes) -> Operation:
    found: dict[str, Any] = {}
    for record in _records(text.splitlines()[-2:]):
        if record.get("kind") in {"receipt", "stopped"}:
            found[record["kind"]] = record
    return replace(operation, **found)


def _records(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # torn by a crash, or cut by us
        if isinstance(record, dict):
            yield record
