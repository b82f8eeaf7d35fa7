"""The table of a sweep: of each task what it was asked, how it ended and what it left, as CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from hibali.errors import UsageError
from hibali.ledger import write_atomic
from hibali.locations import Location
from hibali.strict_json import line_of_json
from hibali.system_errors import reason_of
from hibali.text import path_fields
from runs.run import Run
from runs.sweeps.sweep import sweep_of
from transfers.places import open_store

_FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
    "|",
    "%",
    "\uff1d",
    "\uff0b",
    "\uff0d",
    "\uff20",
)  # the last ones are full-width
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FORMATS = (".csv", ".jsonl", ".parquet")
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file that a task left: the output it belongs to, where it lies, and its sha256 ("" where nobody could hash it)."""

    output: str
    path: bytes
    digest: str


def check_table(path: Path, folder: str | None = None) -> None:
    """Raise `UsageError` for a table that could not be written, before anything is run for it; `folder` is going to be made."""
    if path.suffix.lower() not in _FORMATS:
        raise UsageError("unknown-table", f"a table is written as {', '.join(_FORMATS)}", about=str(path))
    above = path.absolute().parent
    if not above.is_dir() and (folder is None or Path(folder).absolute() not in (above, *above.parents)):
        raise UsageError("no-folder", "the folder for the table is not there", about=str(path))
    if path.suffix.lower() == ".parquet":
        _load_pyarrow(path)


def write_table(path: Path, run: Run, left: Mapping[int, Sequence[OutputFile]]) -> None:
    """One row a task, in order, whole or not at all. Raises `UsageError` where it cannot be written."""
    rows = list(_rows(run, left))
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        content = "".join(line_of_json(row) + "\n" for row in rows).encode("ascii")
    elif suffix == ".csv":
        content = _as_csv(_columns(run, rows))
    else:
        content = _as_parquet(path, _columns(run, rows))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content, mode=0o666)
    except OSError as problem:
        raise UsageError(
            "table-unwritable", f"the table cannot be written: {reason_of(problem)}", about=str(path)
        ) from None


def _rows(run: Run, left: Mapping[int, Sequence[OutputFile]]) -> Iterator[dict[str, Any]]:
    sweep = sweep_of(run)
    for number, values in sweep.all_values():
        task = sweep.tasks[number]
        yield {
            "task": number,
            "values": values,
            "state": str(task.state),
            "exit_code": task.exit_code,
            "seconds": seconds_between(task.started, task.ended),
            "outputs": [
                {"id": each.output, **path_fields(each.path), "sha256": each.digest or None}
                for each in left.get(number, ())
            ],
        }


def seconds_between(started: str, ended: str) -> int | None:
    """How long something took by two times as job scripts write them; None where either is none."""
    try:
        return int((datetime.strptime(ended, _TIME) - datetime.strptime(started, _TIME)).total_seconds())  # noqa: DTZ007 - both are UTC
    except ValueError:
        return None


def _columns(run: Run, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The rows as columns of plain values: of several files of one output, a JSON list."""
    sweep = sweep_of(run)
    columns: dict[str, list[Any]] = {"task": [row["task"] for row in rows]}
    fixed = ("state", "exit_code", "seconds")
    for name in sweep.columns:
        shown = name if name not in {"task", *fixed} else f"input.{name}"
        columns[shown] = [_plain(row["values"].get(name)) for row in rows]
    for name in fixed:
        columns[name] = [row[name] for row in rows]
    for output in dict.fromkeys(each.id for outputs in sweep.sets for each in outputs):
        shown = output if output not in columns else f"output.{output}"
        files = [[each for each in row["outputs"] if each["id"] == output] for row in rows]
        columns[shown] = [_one_or_list([each["path"] for each in some]) for some in files]
        columns[f"{shown}.sha256"] = [_one_or_list([each["sha256"] for each in some]) for some in files]
    return columns


def _plain(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _one_or_list(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else _plain(values) if values else None


def _as_csv(columns: Mapping[str, Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    rows = [[_cell(name) for name in columns]]
    rows += [[_cell(value) for value in row] for row in zip(*columns.values(), strict=True)]
    # The writer quotes no carriage return by itself, and readers take it for the end of the row.
    returns = any("\r" in cell for row in rows for cell in row if isinstance(cell, str))
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL)
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> Any:
    """A value for a cell; text that a spreadsheet would take for a formula begins with an apostrophe (OWASP, CSV injection)."""
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return str(value).lower() if isinstance(value, bool) else value


def _load_pyarrow(path: Path) -> Any:
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError:
        raise UsageError(
            "no-pyarrow",
            "a Parquet table needs pyarrow, which is not installed here",
            about=str(path),
            hint="pip install pyarrow; or name a .csv or .jsonl file.",
        ) from None


def _as_parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> bytes:
    pyarrow = _load_pyarrow(path)
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pyarrow.array(values)
        except (pyarrow.ArrowException, OverflowError):  # values of several kinds, or beyond 64 bits
            arrays[name] = pyarrow.array([None if value is None else str(value) for value in values])
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays), stream)
    return stream.getvalue()


def hash_files(place: Location, names: Sequence[bytes]) -> dict[bytes, str]:
    """The sha256 of these files at a place as they are now, read there; what cannot be read is left out."""
    wanted = set(names)
    if not wanted:
        return {}
    store = open_store(place)
    try:
        entries = [entry for entry in store.list() if entry.path in wanted]
        return {entry.path: digest for entry, digest, _ in store.digest(iter(entries)) if digest is not None}
    finally:
        store.close()
