"""Index all operations of the ledger, and compact old journals."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hibali.documents import line_of_json
from hibali.errors import IncompleteError
from hibali.files import read_regular, write_atomic
from hibali.journal_index import IndexRow, JournalIndex, Value
from hibali.ledger import LATEST, ledger_folder, now, read_records
from hibali.system_errors import reason_of
from hibali.text import path_from_fields
from transfers.history.operations import (
    RESULTS,
    VERIFIED,
    Filter,
    Operation,
    OperationRoot,
    Result,
    UnverifiedFiles,
    find_unverified,
    journal_of,
    place_fields,
    read_operation,
    read_place,
)
from transfers.history.rates import Rates, parse_rates
from transfers.history.running import is_running, running_operations

if TYPE_CHECKING:
    from sqlite3 import Connection

_VERSION = 2
_COLUMNS = (
    "began",
    "moment",
    "touched",
    "operation",
    "command",
    "sites",
    "schedule",
    "exit",
    "mistyped",
    "unverified",
    "place_site",
    "place_bucket",
    "place_path",
    "origin_site",
    "origin_bucket",
    "origin_path",
    "fields",
)
_INDEXED = (
    "began, name",
    "touched",
    "operation",
    "command",
    "exit",
    "unverified",
    "place_site, place_path",
    "origin_site, origin_path",
)


def read_operations() -> list[Operation]:
    """Return every operation, oldest first."""
    return _select("1", ())


def read_latest(chosen: Filter, most: int | None = None) -> tuple[list[Operation], int]:
    """Return the latest operations that satisfy the filter, oldest first, and the number of all that do."""
    where, parameters = _condition(chosen)
    limit = "" if most is None else f" LIMIT {most}"
    order = f"began DESC, name DESC{limit}"

    def ask(entries: Connection) -> tuple[list[Operation], int]:
        found = [_operation_of(row) for row in entries.execute(_query(where, order), parameters)]
        [count] = entries.execute(f"SELECT count(*) FROM entries WHERE {where}", parameters).fetchone()
        return found[::-1], int(count)

    return _index().answer(ask)


def read_operations_since(moment: float) -> list[Operation]:
    """Return the operations that started or were active since `moment` (epoch seconds), oldest first."""
    return _select("(moment >= ? OR touched >= ?)", (moment, moment))


def read_operations_at(roots: Iterable[OperationRoot], *, unplaced: bool = False) -> list[Operation]:
    """Return the operations from or to a place that is, contains or is below one of these roots, oldest first.

    And all renames, because a rename has a second place; with `unplaced` also those without a known place.
    """
    where, parameters = _at(roots)
    return _select(f"(place_site IS NULL OR {where})" if unplaced else where, parameters)


def journals_at(root: OperationRoot) -> list[Path]:
    """Return the journals of the operations that `read_operations_at` returns, in the same order."""
    where, parameters = _at([root])
    folder = ledger_folder("operations")
    query = f"SELECT name FROM entries WHERE {where} ORDER BY began, name"
    return _index().select(query, parameters, lambda row: folder / f"{row[0]}.jsonl")


def has_begun(operation: str, source: str, target: str) -> bool:
    """Return whether the ledger has an operation of this kind with the same source and target as typed."""
    query = "SELECT name FROM entries WHERE command = ? LIMIT 1"
    return bool(_index().select(query, [_command(operation, source, target)], tuple))


def count_operations() -> int:
    """Return the number of operations whose command line was not wrong."""
    return _index().select("SELECT count(*) FROM entries WHERE NOT mistyped", (), lambda row: int(row[0]))[0]


def read_unverified() -> list[UnverifiedFiles]:
    """Find the files that no verification covers, of all operations; see `find_unverified`."""
    query = "SELECT DISTINCT place_site, place_bucket, place_path FROM entries WHERE unverified AND place_site IS NOT NULL"
    roots = _index().select(query, (), lambda row: OperationRoot(*row))
    if not roots:
        return []
    return find_unverified([each for each in read_operations_at(roots) if not each.was_mistyped])


def _select(where: str, parameters: Sequence[Value]) -> list[Operation]:
    return _index().select(_query(where, "began, name"), parameters, _operation_of)


def _query(where: str, order: str) -> str:
    return f"SELECT began, name, fields FROM entries WHERE {where} ORDER BY {order}"


def _operation_of(row: tuple[Any, ...]) -> Operation:
    return _read_fields(json.loads(row[2]))


def _index() -> JournalIndex:
    return JournalIndex(
        ledger_folder("operations"),
        ledger_folder("history") / "operations.sqlite",
        version=_VERSION,
        columns=_COLUMNS,
        indexed=_INDEXED,
        read=_read_row,
    )


def _read_row(path: Path) -> IndexRow:
    """Return the row of an operation; its receipt is the last line of its journal, so it is settled then."""
    operation = read_operation(path)
    values = (
        operation.began,
        operation.moment,
        operation.touched,
        operation.operation,
        _command(operation.operation, operation.source, operation.target),
        f" {' '.join(sorted(operation.sites))} ",
        operation.schedule,
        operation.exit,
        int(operation.was_mistyped),
        int(operation.proof_moved not in VERIFIED),
        *_place_values(operation.place),
        *_place_values(operation.origin),
        line_of_json(_fields(operation)),
    )
    return IndexRow(values, settled=operation.receipt is not None)


def _place_values(place: OperationRoot | None) -> tuple[Value, ...]:
    return (None, None, None) if place is None else (place.site, place.bucket, place.path.rstrip(b"/"))


def _command(operation: str, source: str, target: str) -> bytes:
    text = line_of_json({"command": [operation, source, target]})
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).digest()


def _at(roots: Iterable[OperationRoot]) -> tuple[str, list[Value]]:
    conditions: list[str] = ["operation = 'mv'"]
    parameters: list[Value] = []
    for root in roots:
        for side in ("place", "origin"):
            condition, values = _related(side, root)
            conditions.append(condition)
            parameters += values
    return f"({' OR '.join(conditions)})", parameters


def _related(side: str, root: OperationRoot) -> tuple[str, list[Value]]:
    """Return the condition that a place (`side`) is `root`, or is above or below it, as `OperationRoot.path_to` decides."""
    site = f"({side}_site = ? AND {side}_bucket IS ?"
    parameters: list[Value] = [root.site, root.bucket]
    path = root.path.rstrip(b"/")
    if not path:
        return f"{site})", parameters
    above = [b"", path, *(path[: found.start()] for found in re.finditer(b"/", path))]
    listed = ", ".join("?" * len(above))
    below = [path + b"/", path + b"0"]  # 0 is the character after /
    return (
        f"{site} AND ({side}_path IN ({listed}) OR ({side}_path > ? AND {side}_path < ?)))",
        [*parameters, *above, *below],
    )


def _condition(chosen: Filter) -> tuple[str, list[Value]]:
    """Return the condition of a filter."""
    found: list[tuple[str, list[Value]]] = [("1", [])]
    if chosen.site is not None:
        found.append(("instr(sites, ?)", [f" {chosen.site} "]))
    if chosen.schedule is not None:
        found.append(("schedule = ?", [chosen.schedule]))
    if chosen.since is not None:
        found.append(("moment >= ?", [chosen.since]))
    if chosen.until is not None:
        found.append(("moment < ?", [chosen.until]))
    if chosen.results:
        found.append(_result_condition(chosen.results))
    return " AND ".join(text for text, _ in found), [each for _, values in found for each in values]


def _result_condition(results: Collection[Result]) -> tuple[str, list[Value]]:
    parts = [f"exit IN ({_listed(code for code, result in RESULTS.items() if result in results)})"]
    if Result.FAILED in results:
        parts.append(f"exit NOT IN ({_listed(RESULTS)})")
    running: list[Value] = [each.id for each in running_operations()]
    parameters: list[Value] = []
    for result, comparison in ((Result.UNDER_WAY, "IN"), (Result.UNFINISHED, "NOT IN")):
        if result in results:
            parts.append(f"(exit IS NULL AND name {comparison} ({', '.join('?' * len(running))}))")
            parameters += running
    return f"({' OR '.join(parts)})", parameters


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(int(each)) for each in numbers)


def _fields(operation: Operation) -> dict[str, Any]:
    return {
        **{each.name: getattr(operation, each.name) for each in fields(operation) if each.name != "running"},
        "origin": None if operation.origin is None else place_fields(operation.origin),
        "place": None if operation.place is None else place_fields(operation.place),
        "sites": sorted(operation.sites),
    }


def _read_fields(record: dict[str, Any]) -> Operation:
    roots = {key: record[key] and read_place(record[key]) for key in ("origin", "place")}
    running = record["receipt"] is None and is_running(record["id"])
    return Operation(**{**record, **roots, "sites": frozenset(record["sites"]), "running": running})


_MOST_FAILURES = 1000


@dataclass(slots=True)
class OperationDetails:
    """An operation in full.

    Attributes:
        files: the number of journal lines by kind.
        verifications: the number of moved files by verification.
        failures: the first thousand.
        notes: such as the id of its Globus task.
        rates: what was carried over time; None for a short one, and of older versions.
    """

    operation: Operation
    files: Counter[str] = field(default_factory=Counter)
    verifications: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rates: Rates | None = None

    @property
    def rate(self) -> float | None:
        """The rate in bytes per second; None if nothing moved."""
        moved, seconds = self.operation.number("bytes_moved"), self.operation.seconds
        return moved / seconds if moved and seconds else None


def read_details(identifier: str) -> OperationDetails:
    """Read everything recorded about an operation, of `latest` the latest one. Raises as `journal_of` does."""
    latest = read_latest(Filter(), 1)[0] if identifier == LATEST else ()
    path = journal_of(latest[0].id if latest else identifier)
    details = OperationDetails(read_operation(path))
    for record in read_records(path):
        kind = record.get("kind")
        if kind == "noted":
            details.notes.append(str(record.get("message")))
        if kind == "rates":
            details.rates = parse_rates(record)
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
        lines = read_regular(path, -1).splitlines(keepends=True)
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
    except (ValueError, KeyError, RecursionError):
        pass
    return None


def _replace(operation: Operation, kept_lines: list[bytes], lines: int) -> None:
    """Replace the journal, with a note; its modification time is kept, by which recent ones are found."""
    _index().discard()
    path = journal_of(operation.id)
    note = line_of_json({"kind": "compacted", "at": now(), "lines": lines}).encode("ascii") + b"\n"
    try:
        stamp = path.stat().st_mtime_ns
        write_atomic(path, kept_lines[0] + note + b"".join(kept_lines[1:]), mtime_ns=stamp)
    except OSError as problem:
        raise IncompleteError(
            "ledger-unwritable", f"the ledger cannot be written: {reason_of(problem)}", subject=str(path)
        ) from None
