"""What a report tells of runs, from the ledger alone: no site is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hibali.amounts import time_words
from runs.book import Book
from runs.bundles.outputs import Left, recorded_outputs
from runs.course import SKEW_SECONDS, Span, course_of_run, read_moment
from runs.report.timeline import Line
from runs.run import Run, State

_MOST_TASK_LINES = 60  # a sweep of more is drawn as a grid alone
MOST_LINES = 400  # of the timeline; the table has all runs


@dataclass(frozen=True, slots=True)
class Told:
    """One run: its record, its time in each state, when it was collected, and the digests of what came."""

    run: Run
    record: Mapping[str, Any]
    spans: Sequence[Span]
    collected: Sequence[float]
    left: Left | None

    @property
    def tasks(self) -> Sequence[Mapping[str, Any]]:
        """As in the run's JSON."""
        tasks: Sequence[Mapping[str, Any]] = self.record["tasks"]
        return tasks

    @property
    def waited(self) -> float | None:
        """Seconds from the submission to the beginning; None where it was not submitted, or has not begun."""
        sent = next((span.since for span in self.spans if span.state is State.SUBMITTED), None)
        ran = next((span.since for span in self.spans if span.state is State.RUNNING), None)
        return None if sent is None or ran is None else max(0.0, ran - sent)

    @property
    def ran(self) -> float | None:
        """Seconds in which the tool ran; None where that is not known."""
        ends = [span.until - span.since for span in self.spans if span.state is State.RUNNING and span.until]
        return ends[-1] if ends else None


def tell_of(run: Run, book: Book) -> Told:
    """Everything that the ledger has of it."""
    records = book.records(run.id)
    collected = [read_moment(record.get("at")) for record in records if record.get("kind") == "collected"]
    return Told(
        run=run,
        record=run.to_whole_record(),
        spans=course_of_run(run, records),
        collected=[at for at in collected if at is not None],
        left=recorded_outputs(run, book),
    )


def lines_of(told: Sequence[Told], now: float) -> list[Line]:
    """The rows of the timeline, at most `MOST_LINES`: the latest runs, in the order in which they began."""
    lines: list[Line] = []
    for each in reversed(told):
        some = _lines_of_run(each, now)
        if some and len(lines) + len(some) > MOST_LINES:
            break
        lines[:0] = some
    return lines


def _lines_of_run(each: Told, now: float) -> list[Line]:
    run = each.run
    if not each.spans:
        return []
    seconds = each.ran if run.state.ended else now - each.spans[-1].since
    said = f"{run.state.lower()}{f', {time_words(seconds)}' if seconds else ''}"
    whole = Line(
        label=run.id,
        spans=each.spans,
        state=run.state,
        below=f"{run.pipeline} at {run.site}",
        target=run.id,
        said=said,
        collected=each.collected,
    )
    if not 1 < len(each.tasks) <= _MOST_TASK_LINES:
        return [whole]
    tasks = (_line_of_task(number, task, whole, now) for number, task in enumerate(each.tasks, 1))
    return [whole, *(line for line in tasks if line is not None)]


def _line_of_task(number: int, task: Mapping[str, Any], run: Line, now: float) -> Line | None:
    """None for a task that has not begun, or of which nobody knows when: what it says itself may be anything."""
    state, began = State(task["state"]), read_moment(task.get("started"))
    ended = read_moment(task.get("ended"))
    if began is None or (state.ended and ended is None):
        return None
    if not run.began - SKEW_SECONDS <= began <= (ended or began) <= run.ended(now) + SKEW_SECONDS:
        return None
    spans = [Span(State.RUNNING, began, ended)]
    if ended is not None:
        spans.append(Span(state, max(began, ended)))
    return Line(label=f"task {number}", spans=spans, state=state)
