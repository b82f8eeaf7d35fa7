"""Read the tasks of a sweep from tables and value lists, typed by the pipeline's inputs."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hibali.documents import JsonProblemError, read_json
from hibali.errors import UsageError
from hibali.text import counted, write_ranges
from registry.invocation import (
    Invocation,
    check_invocation,
    find_invocation_problems,
    find_unknown,
    read_typed,
)
from registry.pipeline import Input, Pipeline
from registry.problems import InvocationError, Problem, ProblemsError, read_file_bytes

MOST_TASKS = 100_000
_MOST_PROBLEMS = 100
_MAXIMUM_BYTES = 64 * 1024 * 1024
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LINES = frozenset({".jsonl", ".ndjson"})
_ENTRIES = ";"  # between the entries of a list, where commas separate values or cells


@dataclass(frozen=True, slots=True)
class Row:
    """The values of one task in addition to the common ones; `line` is its line in the table, 0 without one.

    `name` is the name of the task, "" for one that is made of its values.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    line: int = 0
    name: str = ""


class SweepError(ProblemsError):
    """A table, a parameter or one of their invocations is invalid."""

    def __init__(self, problems: Sequence[Problem], *, subject: str, hint: str = "") -> None:
        shown = list(problems[:_MOST_PROBLEMS])
        if len(problems) > len(shown):
            shown.append(Problem("", f"and {len(problems) - len(shown)} more problems"))
        super().__init__("invalid-sweep", shown, subject=subject, hint=hint)


def make_rows(pipeline: Pipeline, table: Path | None, parameters: Sequence[str]) -> list[Row]:
    """Return one row for each task: each row of the table with each combination of the parameters; the last varies fastest.

    Raises `SweepError` with every problem, `NotFoundError` for a missing table.
    """
    rows = read_table(pipeline, table) if table is not None else [Row()]
    lists = read_parameters(pipeline, parameters)
    named = {identifier for row in rows for identifier in row.values}
    twice = [Problem(each, "is given in the table and with --param") for each in lists if each in named]
    if twice:
        raise SweepError(twice, subject="--param")
    count = len(rows) * math.prod(len(values) for values in lists.values())
    if not count or count > MOST_TASKS:
        raise SweepError(
            [
                Problem(
                    "", f"{counted(count, 'task is', 'tasks are')} given, but a sweep has 1 to {MOST_TASKS}"
                )
            ],
            subject=str(table) if table is not None else "--param",
        )
    return [
        Row({**row.values, **dict(zip(lists, chosen, strict=True))}, row.line)
        for row in rows
        for chosen in itertools.product(*lists.values())
    ]


def check_tasks(
    pipeline: Pipeline, common_values: Any, rows: Sequence[Row], *, subject: str = ""
) -> list[Invocation]:
    """Return the invocation of each row, in order; a row overrides `common_values`. Errors call the source `subject`.

    Raises `InvocationError` where `common_values` are no object, `SweepError` with every problem of every row; a problem of
    several rows is reported once, with their numbers.
    """
    if not isinstance(common_values, Mapping):
        problems = find_invocation_problems(pipeline, common_values)
        raise InvocationError(problems, reference=pipeline.reference, subject=subject)
    merged = [{**common_values, **row.values} for row in rows]
    found: dict[Problem, list[int]] = {}
    for number, values in enumerate(merged, start=1):
        for problem in find_invocation_problems(pipeline, values):
            found.setdefault(problem, []).append(number)
    if found:
        problems = [_in_tasks(problem, numbers, rows) for problem, numbers in found.items()]
        hint = f"`hibali pipelines show {pipeline.reference}` lists the inputs."
        raise SweepError(problems, subject=subject or pipeline.reference, hint=hint)
    return [check_invocation(pipeline, values) for values in merged]


def _in_tasks(problem: Problem, numbers: Sequence[int], rows: Sequence[Row]) -> Problem:
    tasks = f"task {numbers[0]}" if len(numbers) == 1 else f"tasks {write_ranges(numbers)}"
    path = f"{tasks}, {problem.path}" if problem.path else tasks
    return Problem(path, problem.message, problem.instead, rows[numbers[0] - 1].line)


def read_table(pipeline: Pipeline, path: Path) -> list[Row]:
    """Read the rows of a `.csv` or `.tsv` file, whose header names the inputs, or of a file with one JSON object per line.

    An empty cell is ignored. Raises `SweepError`, `NotFoundError`.
    """
    suffix = path.suffix.lower()
    if suffix not in _SEPARATORS and suffix not in _LINES:
        raise UsageError(
            "unknown-table",
            "a table of tasks must be a .csv, .tsv or .jsonl file",
            subject=str(path),
        )
    text = _read_text(path)
    if suffix in _LINES:
        return _read_objects(text, path)
    return _read_cells(pipeline, text, path, _SEPARATORS[suffix])


def _read_text(path: Path) -> str:
    content = read_file_bytes(path, _MAXIMUM_BYTES)
    if len(content) > _MAXIMUM_BYTES:
        raise SweepError([Problem("", f"larger than {_MAXIMUM_BYTES} bytes")], subject=str(path))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise SweepError([Problem("", f"not UTF-8 at byte {problem.start}")], subject=str(path)) from None


def _read_objects(text: str, path: Path) -> list[Row]:
    rows: list[Row] = []
    problems: list[Problem] = []
    # not splitlines: a string may hold U+2028
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = read_json(line.encode("utf-8"), str(path))
        except JsonProblemError as problem:
            problems.append(Problem("", problem.message, line=number))
            continue
        if isinstance(values, dict):
            rows.append(Row(values, number))
        else:
            problems.append(Problem("", "must be a JSON object of input ids and values", line=number))
    if problems:
        raise SweepError(problems, subject=str(path))
    return rows


def _read_cells(pipeline: Pipeline, text: str, path: Path, separator: str) -> list[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as problem:
        raise SweepError([Problem("", str(problem), line=reader.line_num)], subject=str(path)) from None
    if not lines:
        raise SweepError([Problem("", "it is empty; its first line names the inputs")], subject=str(path))
    (_, head), *body = lines
    head = [each.strip() for each in head]
    problems = [*_find_head_problems(pipeline, head), *_find_width_problems(head, body)]
    if problems:
        raise SweepError(problems, subject=str(path))
    columns = [_find_input(pipeline, each) for each in head]
    return [
        Row({q.id: read_text(q, cell) for q, cell in zip(columns, cells, strict=True) if cell.strip()}, line)
        for line, cells in body
    ]


def _find_head_problems(pipeline: Pipeline, head: Sequence[str]) -> Iterator[Problem]:
    for identifier in dict.fromkeys(head):
        if head.count(identifier) > 1:
            yield Problem(identifier, "is the name of two columns", line=1)
        yield from find_unknown(pipeline, [identifier], line=1)


def _find_width_problems(head: Sequence[str], body: Sequence[tuple[int, list[str]]]) -> Iterator[Problem]:
    for line, cells in body:
        if len(cells) != len(head):
            yield Problem("", f"has {len(cells)} cells, but the header has {len(head)}", line=line)


def _find_input(pipeline: Pipeline, identifier: str) -> Input:
    found = pipeline.find_input(identifier)
    assert found is not None
    return found


def read_parameters(pipeline: Pipeline, parameters: Sequence[str]) -> dict[str, list[Any]]:
    """Parse the values of each `ID=VALUE,VALUE,...`, typed, in the order given. Raises `SweepError`."""
    lists: dict[str, list[Any]] = {}
    problems: list[Problem] = []
    for text in parameters:
        identifier, separator, values = text.partition("=")
        wrong = [] if separator else [Problem(identifier[:200], "must be written ID=VALUE,VALUE,...")]
        wrong = wrong or list(find_unknown(pipeline, [identifier]))
        if identifier in lists:
            wrong.append(Problem(identifier, "is given twice"))
        if not wrong:
            tool_input = _find_input(pipeline, identifier)
            lists[identifier] = [read_text(tool_input, each) for each in split_values(values)]
        problems += wrong
    if problems:
        raise SweepError(problems, subject="--param")
    return lists


def split_values(text: str) -> list[str]:
    """Split at commas outside of JSON strings and lists."""
    parts = [""]
    depth = 0
    quoted = escaped = False
    for letter in text:
        if letter == "," and not depth and not quoted:
            parts.append("")
            continue
        if quoted:
            quoted = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"' and (depth or not parts[-1].strip()):
            quoted = True
        elif letter == "[" and (depth or not parts[-1].strip()):
            depth += 1
        elif letter == "]" and depth:
            depth -= 1
        parts[-1] += letter
    return parts


def read_text(tool_input: Input, text: str) -> Any:
    """Parse a cell or a part of a parameter; text of another type stays text, so that the rules report it.

    A list is a JSON list, or its entries separated by `;`.
    """
    if not tool_input.is_list:
        return read_typed(tool_input, text)
    if text.strip().startswith("["):
        try:
            found = read_json(text.encode("utf-8", "surrogateescape"), tool_input.id)
        except JsonProblemError:
            return text
        return found if isinstance(found, list) else text
    return [read_typed(tool_input, part) for part in text.split(_ENTRIES)]
