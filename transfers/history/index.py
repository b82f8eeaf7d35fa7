"""All operations of the ledger, oldest first, with a cache beside it that may be thrown away at any time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.errors import HibaliError
from hibali.ledger import ledger_folder, read_records, write_atomic
from hibali.strict_json import line_of_json
from transfers.history.journals import read_operation
from transfers.history.operation import Operation, Place, place_fields, read_place

_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of a journal while it had this size and was written at this time."""

    size: int
    mtime_ns: int
    operation: Operation


def read_operations() -> list[Operation]:
    """Every operation, oldest first. A journal that was not touched since it was last read is not read again."""
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
    """Where there is no room for it, it is done without."""
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
        "id": operation.id,
        "operation": operation.operation,
        "began": operation.began,
        "source": operation.source,
        "target": operation.target,
        "origin": None if operation.origin is None else place_fields(operation.origin),
        "place": None if operation.place is None else place_fields(operation.place),
        "receipt": operation.receipt,
        "stopped": operation.stopped,
        "touched": operation.touched,
        "compacted": operation.compacted,
        "schedule": operation.schedule,
        "firing": operation.firing,
        "sites": sorted(operation.sites),
    }


def _read_fields(fields: dict[str, Any]) -> Operation:
    return Operation(
        **{
            **fields,
            "origin": _read_place(fields["origin"]),
            "place": _read_place(fields["place"]),
            "sites": frozenset(fields["sites"]),
        }
    )


def _read_place(fields: dict[str, Any] | None) -> Place | None:
    return None if fields is None else read_place(fields)


_HEADER = {"kind": "history-cache", "version": _VERSION}
