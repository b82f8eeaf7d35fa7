"""Write the table of a sweep as CSV, JSON lines or Parquet, and rerun its tasks."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from hibali.documents import line_of_json
from hibali.errors import RefusedError, TryLaterError, UsageError
from hibali.files import write_atomic
from hibali.ledger import ledger_folder, seconds_of
from hibali.locations import Location
from hibali.locks import wait_for_lock
from hibali.system_errors import reason_of
from hibali.text import path_fields
from registry.invocation import Invocation, check_invocation
from registry.parameters import Row, check_tasks
from registry.pipeline import Pipeline
from runs.inputs import list_inputs
from runs.model import UNSUCCESSFUL_STATES, Run, State
from runs.records import sweep_of
from runs.request import TaskRequest, Workload
from runs.store import RunStore
from runs.sweeps.launch import files_of
from transfers.stores.open_store import open_store

_FORMULA = tuple("=+-@\t\r\n|%\uff1d\uff0b\uff0d\uff20")  # the last four are full-width
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FORMATS = (".csv", ".jsonl", ".parquet")
_KEYS = ("run", "folder", "state")  # of each row
_Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One output file of a task: the output it belongs to, its path, and its sha256 ("" if it could not be hashed)."""

    output: str
    path: bytes
    digest: str


def check_table(path: Path, folder: str | None = None) -> None:
    """Raise `UsageError` for a table that cannot be written, before the run starts; `folder` will be created."""
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(
            "unknown-table", f"the name of a table must end in {', '.join(_FORMATS)}", subject=str(path)
        )
    above = path.absolute().parent
    if not above.is_dir() and (folder is None or Path(folder).absolute() not in (above, *above.parents)):
        raise UsageError("no-folder", "the folder for the table does not exist", subject=str(path))
    if path.suffix.lower() == ".parquet":
        _load_pyarrow(path)
    _read_rows(path)


def write_table(path: Path, run: Run, left: Mapping[int, Sequence[OutputFile]]) -> None:
    """Write a row for each task, completely or not at all; rows of other tasks that the table has already are kept.

    Raises `UsageError` if it cannot be written, `RefusedError` for an existing file that is no such table.
    """
    rows = list(_rows(run, left))
    suffix = path.suffix.lower()
    if suffix != ".jsonl":
        columns = {_cell(name): values for name, values in _columns(run, rows).items()}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    lock = ledger_folder("tables", hashlib.sha256(bytes(path.resolve())).hexdigest()[:32])
    with wait_for_lock(lock):
        rows = _merged(_read_rows(path), rows)
        if suffix == ".jsonl":
            content = "".join(line_of_json(row) + "\n" for row in rows).encode("ascii")
        else:
            names = {**columns, **{name: None for row in rows for name in row}}
            columns = {name: [row.get(name) for row in rows] for name in names}
            content = _as_csv(columns) if suffix == ".csv" else _as_parquet(path, columns)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content, mode=0o666)
        except OSError as problem:
            raise UsageError(
                "table-unwritable", f"the table cannot be written: {reason_of(problem)}", subject=str(path)
            ) from None


def _merged(existing: Iterable[_Row], rows: Iterable[_Row]) -> list[_Row]:
    """Return all rows, one for each task; as in `find_attempts`, a success stays until another one replaces it."""
    merged: dict[tuple[str, str], _Row] = {}
    for row in (*existing, *rows):
        # sweeps of older versions have numbers as names, which are not those of the same task in another run
        key = (row["folder"], row["run"] if row["folder"].isdigit() else "")
        known = merged.get(key, row)
        if known["run"] == row["run"] or known["state"] != State.SUCCEEDED or row["state"] == State.SUCCEEDED:
            merged[key] = row
    return list(merged.values())


def _read_rows(path: Path) -> list[_Row]:
    """Read an existing table. Raises `RefusedError` for a file that is no table of tasks with their runs."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a regular file")  # reading a FIFO would wait for ever
        if path.suffix.lower() == ".parquet":
            _load_pyarrow(path)
            rows = import_module("pyarrow.parquet").read_table(path).to_pylist() if path.exists() else []
        else:
            text = path.read_bytes().decode()
            as_csv = path.suffix.lower() == ".csv"
            rows = list(csv.DictReader(io.StringIO(text, newline="")) if as_csv else _read_lines(text))
        if all({*_KEYS} <= row.keys() and all(isinstance(row[key], str) for key in _KEYS) for row in rows):
            return rows
    except FileNotFoundError:
        return []
    except (OSError, ValueError, AttributeError, csv.Error):  # pyarrow's errors are ValueErrors
        pass
    raise RefusedError(
        "other-table",
        "this file exists and is no table of tasks and their runs, so that no rows can be added to it",
        subject=str(path),
        hint="Name another file, or move this one away. hibali 0.1 wrote tables without runs.",
    )


def _read_lines(text: str) -> Iterator[_Row]:
    return (json.loads(line) for line in text.split("\n") if line)


def _rows(run: Run, left: Mapping[int, Sequence[OutputFile]]) -> Iterator[dict[str, Any]]:
    names = run.task_names()
    for number, values in run.values():
        task = run.tasks[number]
        yield {
            "run": run.id,
            "task": number,
            "folder": names[number],
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
    """Return the seconds between two times of job scripts; None if either is invalid."""
    first, last = seconds_of(started), seconds_of(ended)
    return None if first is None or last is None else int(last - first)


def _columns(run: Run, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the rows as columns of plain values: several files of one output are a JSON list."""
    sweep = sweep_of(run)
    first, fixed = ("run", "task", "folder"), ("state", "exit_code", "seconds")
    columns = {name: [row[name] for row in rows] for name in first}
    for name in sweep.columns:
        shown = name if name not in {*first, *fixed} else f"input.{name}"
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
    # The writer quotes no carriage return by itself, and readers take it for the end of a row.
    returns = any("\r" in cell for row in rows for cell in row if isinstance(cell, str))
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL)
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> Any:
    """Return the value of a cell; text that a spreadsheet would read as a formula begins with an apostrophe (OWASP, CSV injection)."""
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
            subject=str(path),
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
    """Return the sha256 of files at a location, read now; unreadable ones are left out."""
    wanted = set(names)
    if not wanted:
        return {}
    store = open_store(place)
    try:
        entries = [entry for entry in store.list() if entry.path in wanted]
        return {entry.path: digest for entry, digest, _ in store.digest(iter(entries)) if digest is not None}
    finally:
        store.close()


class RerunRequest(NamedTuple):
    """A recorded request: its workload; `known` has the location of each file.

    `typed` is the command as it was typed (runs.typed).
    """

    workload: Workload
    known: Mapping[str, str]
    typed: Mapping[str, Any]


def tasks_to_rerun(run: Run, *, failed: bool) -> tuple[int, ...]:
    """Return the numbers of the tasks to run again, 0 for a single run; with `failed` those that failed, were cancelled or are LOST.

    Tasks keep their numbers. Raises `TryLaterError` while the run is unfinished.
    """
    chosen = run.in_state(*UNSUCCESSFUL_STATES) if failed else tuple(run.tasks)
    if not run.state.ended and not (failed and chosen):
        raise TryLaterError(
            "not-ended",
            f"the run is {run.state}",
            subject=run.id,
            hint=f"To wait for its end: hibali runs wait {run.id}",
        )
    return chosen


def read_rerun_request(
    run: Run, run_store: RunStore, pipeline: Pipeline, numbers: Sequence[int]
) -> RerunRequest:
    """Read these tasks of a run from the ledger. Raises `RefusedError` if its pipeline changed since."""
    if pipeline.digest != run.spec.pipeline_digest:
        raise RefusedError(
            "other-pipeline",
            f"the run used the descriptor with sha256 {run.spec.pipeline_digest}, but the catalogue has {pipeline.digest}",
            subject=run.spec.pipeline,
            hint="Add that descriptor to the catalogue again.",
        )
    begun = next(record for record in run_store.records(run.id) if record.get("kind") == "prepared")
    values = begun["invocation"]
    typed = begun.get("asked") or {}
    if run.sweep is None:
        invocation = check_invocation(pipeline, values)
        workload = Workload(pipeline, invocation, tuple(list_inputs(invocation)))
        return RerunRequest(workload, _places(begun, [each.text for each in workload.inputs]), typed)
    values_of = dict(run.values())
    rows = [Row(values_of[number]) for number in numbers]
    found = check_tasks(pipeline, values, rows)
    names = run.task_names()
    tasks = tuple(
        TaskRequest(number, row.values, invocation, names[number])
        for number, row, invocation in zip(numbers, rows, found, strict=True)
    )
    invocation = Invocation(dict(values), dict(values))
    workload = Workload(pipeline, invocation, tuple(files_of(tasks)), tasks=tasks)
    return RerunRequest(workload, _places(begun, ()), typed)


def _places(begun: Mapping[str, Any], texts: Sequence[str]) -> dict[str, str]:
    """Return the recorded location of each file, because relative paths may belong to another folder."""
    recorded = begun.get("inputs") or []
    known = {str(each["text"]): str(each["location"]) for each in recorded if "text" in each}
    if not known and len(recorded) == len(texts):
        known = {text: str(each["location"]) for text, each in zip(texts, recorded, strict=True)}
    return known
