"""Write the report of runs as one HTML file without scripts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hibali.amounts import format_duration, format_size
from hibali.ledger import seconds_of
from hibali.text import counted
from hibali_plugins.reports.page import clock, render_page
from hibali_plugins.reports.timeline import LEGEND, Row, Shape, draw_timeline, shorten
from runs.model import Run, State
from runs.outputs import OutputDigests, recorded_outputs
from runs.status import SKEW_SECONDS, Span, run_timeline
from runs.store import RunStore

MAX_ROWS = 400  # of the timeline; the table has all runs
_MAX_TASK_ROWS = 60  # the tasks of a larger sweep are drawn as a grid only
_MAX_OUTPUTS = 200
_MAX_VALUE = 2000  # characters of an invocation's value
_SQUARES, _SQUARE = 50, 12.0  # tasks in one line of a grid, and how large each is


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """One run: its record, its time in each state, when it was collected, and the digests of its outputs."""

    run: Run
    record: Mapping[str, Any]
    spans: Sequence[Span]
    collected: Sequence[float]
    left: OutputDigests | None

    @property
    def tasks(self) -> Sequence[Mapping[str, Any]]:
        """The tasks of a sweep, as in the run's JSON."""
        tasks: Sequence[Mapping[str, Any]] = self.record["tasks"]
        return tasks

    @property
    def waited(self) -> float | None:
        """Seconds from submission to start; None for a run that was not submitted or has not started."""
        sent = next((span.since for span in self.spans if span.state is State.SUBMITTED), None)
        ran = next((span.since for span in self.spans if span.state is State.RUNNING), None)
        return None if sent is None or ran is None else max(0.0, ran - sent)

    @property
    def ran(self) -> float | None:
        """Seconds in which the tool ran; None if unknown."""
        ends = [span.until - span.since for span in self.spans if span.state is State.RUNNING and span.until]
        return ends[-1] if ends else None


def report_run(run: Run, store: RunStore) -> ReportedRun:
    """Read the records of a run from the ledger."""
    records = store.records(run.id)
    collected = [seconds_of(record.get("at")) for record in records if record.get("kind") == "collected"]
    return ReportedRun(
        run=run,
        record=run.to_whole_record(),
        spans=run_timeline(run, records),
        collected=[at for at in collected if at is not None],
        left=recorded_outputs(run, store) if run.sweep is None else None,
    )


def timeline_rows(runs: Sequence[ReportedRun], now: float) -> list[Row]:
    """Make the rows of the timeline, at most `MAX_ROWS`: the latest runs, in the order in which they began."""
    rows: list[Row] = []
    for each in reversed(runs):
        more = _rows_of_run(each, now)
        if more and len(rows) + len(more) > MAX_ROWS:
            break
        rows[:0] = more
    return rows


def _rows_of_run(each: ReportedRun, now: float) -> list[Row]:
    run = each.run
    if not each.spans:
        return []
    seconds = each.ran if run.state.ended else now - each.spans[-1].since
    duration = f", {format_duration(seconds)}" if seconds else ""
    whole = Row(
        label=run.id,
        spans=each.spans,
        state=run.state,
        subtitle=shorten(f"{run.spec.pipeline} at {run.site}"),
        target=run.id,
        summary=f"{run.state.lower()}{duration}",
        collected=each.collected,
    )
    if not 1 < len(each.tasks) <= _MAX_TASK_ROWS:
        return [whole]
    tasks = (_row_of_task(number, task, whole, now) for number, task in enumerate(each.tasks, 1))
    return [whole, *(row for row in tasks if row is not None)]


def _row_of_task(number: int, task: Mapping[str, Any], run: Row, now: float) -> Row | None:
    """Make the row of a task; None if it has not begun or its times, which the job itself recorded, are impossible."""
    state, began = State(task["state"]), seconds_of(task.get("started"))
    ended = seconds_of(task.get("ended"))
    if began is None or (state.ended and ended is None):
        return None
    if not run.began - SKEW_SECONDS <= began <= (ended or began) <= run.ended(now) + SKEW_SECONDS:
        return None
    spans = [Span(State.RUNNING, began, ended)]
    if ended is not None:
        spans.append(Span(state, max(began, ended)))
    return Row(label=f"task {number}", spans=spans, state=state)


def render(runs: Sequence[ReportedRun], now: float) -> bytes:
    """Render the document.

    Args:
        runs: The runs, oldest first.
        now: When their state was read, in seconds since the epoch.
    """
    rows = timeline_rows(runs, now)
    drawn = sum(1 for row in rows if row.target)
    counts = Counter(each.run.state for each in runs)
    return render_page(
        "run_page.html",
        ["run_page.css"],
        title=_title(runs),
        now=clock(now),
        counts=[(state.lower(), f"{counts[state]} {state.lower()}") for state in State if counts[state]],
        timeline=draw_timeline(rows, now) if rows else None,
        legend=list(legend_of(runs)),
        any_collected=any(each.collected for each in runs),
        omitted=f"The latest {drawn} of {len(runs)} runs. " if drawn < len(runs) else "",
        measures=("waited", "ran", "CPU", "memory", "exit"),
        runs=[section_values(each) for each in runs],
    )


@dataclass(frozen=True, slots=True)
class _Fact:
    name: str
    value: str | bytes
    code: bool = False


@dataclass(frozen=True, slots=True)
class _Table:
    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[str | bytes]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class TaskGrid:
    """A square for each task, in the colour of its state."""

    width: float
    height: float
    squares: Sequence[Shape]


def _title(runs: Sequence[ReportedRun]) -> str:
    if len(runs) == 1:
        return f"{runs[0].run.spec.pipeline} at {runs[0].run.site}"
    return counted(len(runs), "run")


def legend_of(runs: Sequence[ReportedRun]) -> Iterable[tuple[str, str]]:
    """Explain the colours that the page uses."""
    states = {each.run.state.lower() for each in runs}
    states |= {str(task["state"]).lower() for each in runs for task in each.tasks}
    return ((kind, text) for kind, text in LEGEND if kind in {"staging", "waiting"} or kind in states)


def section_values(each: ReportedRun) -> dict[str, Any]:
    """Return the values of one run for the template."""
    run = each.run
    return {
        "id": run.id,
        "state": run.state.lower(),
        "pipeline": run.spec.pipeline,
        "site": run.site,
        "reason": run.status.reason,
        "measures": [
            _seconds(each.waited),
            _seconds(each.ran),
            _seconds(run.status.cpu_seconds),
            _memory(run),
            _exit_code(run),
        ],
        "facts": [fact for fact in _facts(each) if fact.value],
        "grid": task_grid(each.tasks) if len(each.tasks) > 1 else None,
        "tables": list(_tables(each)),
    }


def _facts(each: ReportedRun) -> Iterator[_Fact]:
    run = each.run
    yield _Fact("name", run.spec.name)
    yield _Fact("begun", _moment(run.created))
    yield _Fact("started", _moment(run.status.started))
    yield _Fact("ended", _moment(run.status.ended))
    yield _Fact("waited", _seconds(each.waited))
    yield _Fact("ran", _seconds(each.ran))
    yield _Fact("CPU", _seconds(run.status.cpu_seconds))
    yield _Fact("memory", _memory(run))
    yield _Fact("exit code", _exit_code(run))
    yield _Fact("host", run.status.host)
    yield _Fact("scheduler", f"{run.placement.scheduler}{f', job {run.job}' if run.job else ''}")
    yield _Fact("state in the scheduler", run.status.native)
    yield _Fact("container", run.placement.container)
    yield _Fact("hibali", run.spec.version)
    yield _Fact("pipeline digest", f"sha256:{run.spec.pipeline_digest}", code=True)
    yield _Fact("image", run.placement.image or "", code=True)
    yield _Fact("folder", run.folder, code=True)
    yield _Fact("collected to", ", ".join(run.results.collected))
    yield _Fact("receipts", ", ".join(run.results.receipts), code=True)


def _memory(run: Run) -> str:
    return "" if run.status.memory_bytes is None else format_size(run.status.memory_bytes)


def _exit_code(run: Run) -> str:
    return "" if run.status.exit_code is None else str(run.status.exit_code)


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return format_duration(value) if value >= 1 else f"{value:.1f} s"


def _moment(text: str) -> str:
    return f"{text[:10]} {text[11:19]} UTC" if text else ""


def _tables(each: ReportedRun) -> Iterator[_Table]:
    """Return the tables of inputs and of collected outputs with their verified digests."""
    files = {run_input["id"] for run_input in each.run.spec.inputs}
    values = [(name, _value(value)) for name, value in each.run.spec.invocation.items() if name not in files]
    yield _Table("Invocation", ("id", "value"), values)
    inputs = [
        (run_input["id"], run_input["location"], run_input["identity"]) for run_input in each.run.spec.inputs
    ]
    yield _Table("Inputs", ("id", "location", "content"), inputs)
    if each.left is not None:
        outputs = sorted(each.left.files.items())
        more = len(outputs) - _MAX_OUTPUTS
        yield _Table(
            "Outputs",
            ("path", "size", "content"),
            [
                (path, format_size(size), f"sha256:{digest}")
                for path, (digest, size) in outputs[:_MAX_OUTPUTS]
            ],
            note=f"and {more} more, {format_size(each.left.size)} in all" if more > 0 else "",
        )


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}… ({len(text)} characters)"


def task_grid(tasks: Sequence[Mapping[str, Any]]) -> TaskGrid:
    """Return a square for each task of a sweep."""
    squares = []
    for number, task in enumerate(tasks):
        state = str(task["state"]).lower()
        kind = state if State(task["state"]).ended or state == "running" else "waiting"
        exit_code = task.get("exit_code")
        text = f"task {number + 1}: {state}{f', exit code {exit_code}' if exit_code else ''}"
        x, y = number % _SQUARES * _SQUARE, number // _SQUARES * _SQUARE
        squares.append(Shape(kind, x, y, _SQUARE - 2, _SQUARE - 2, text))
    lines = -(-len(tasks) // _SQUARES)
    return TaskGrid(min(len(tasks), _SQUARES) * _SQUARE, lines * _SQUARE, squares)
