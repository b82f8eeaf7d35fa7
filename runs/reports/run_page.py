"""Write the report of runs as one HTML file without scripts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali import __version__
from hibali.amounts import size_words, time_words
from runs.model import Run, State
from runs.outputs import OutputDigests, recorded_outputs
from runs.reports.markup import (
    LEGEND,
    Child,
    Element,
    Line,
    clock,
    draw_timeline,
    link_to,
    page_head,
    tag,
    write_page,
)
from runs.status import SKEW_SECONDS, Span, read_moment, run_timeline
from runs.store import RunStore

_MOST_TASK_LINES = 60  # a sweep of more is drawn as a grid alone
MOST_LINES = 400  # of the timeline; the table has all runs


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """One run: its record, its time in each state, when it was collected, and the digests of what came."""

    run: Run
    record: Mapping[str, Any]
    spans: Sequence[Span]
    collected: Sequence[float]
    left: OutputDigests | None

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


def tell_of(run: Run, book: RunStore) -> ReportedRun:
    """Everything that the ledger has of it."""
    records = book.records(run.id)
    collected = [read_moment(record.get("at")) for record in records if record.get("kind") == "collected"]
    return ReportedRun(
        run=run,
        record=run.to_whole_record(),
        spans=run_timeline(run, records),
        collected=[at for at in collected if at is not None],
        left=recorded_outputs(run, book),
    )


def lines_of(told: Sequence[ReportedRun], now: float) -> list[Line]:
    """The rows of the timeline, at most `MOST_LINES`: the latest runs, in the order in which they began."""
    lines: list[Line] = []
    for each in reversed(told):
        some = _lines_of_run(each, now)
        if some and len(lines) + len(some) > MOST_LINES:
            break
        lines[:0] = some
    return lines


def _lines_of_run(each: ReportedRun, now: float) -> list[Line]:
    run = each.run
    if not each.spans:
        return []
    seconds = each.ran if run.state.ended else now - each.spans[-1].since
    said = f"{run.state.lower()}{f', {time_words(seconds)}' if seconds else ''}"
    whole = Line(
        label=run.id,
        spans=each.spans,
        state=run.state,
        below=f"{run.spec.pipeline} at {run.site}",
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


_MOST_OUTPUTS = 200
_MOST_VALUE = 2000  # characters of an answer
_SQUARES, _SQUARE = 50, 12.0  # tasks in one line of a grid, and how large each is


def render(told: Sequence[ReportedRun], now: float) -> bytes:
    """The document in ASCII; `told` are the runs, oldest first, `now` is when they were looked at, seconds since the epoch."""
    style = Path(__file__).with_name("run_page.css").read_text("ascii")
    body = tag("main", _heading(told, now), *_timeline(told, now), *_overview(told))
    if told:
        body.append(tag("h2", "Each run"))
    body.extend(_run(each) for each in told)
    body.append(tag("footer", f"Written by hibali {__version__} from its ledger; no site was asked."))
    return write_page(tag("html", page_head(_title(told), style), tag("body", body), lang="en"))


def _title(told: Sequence[ReportedRun]) -> str:
    if len(told) == 1:
        return f"{told[0].run.spec.pipeline} at {told[0].run.site}"
    return f"{len(told)} runs"


def _heading(told: Sequence[ReportedRun], now: float) -> Element:
    counts = Counter(each.run.state for each in told)
    shown = [_state(state, f"{counts[state]} {state.lower()}") for state in State if counts[state]]
    return tag(
        "header",
        tag("h1", _title(told), id="top"),
        tag("p", f"As last heard of on {clock(now)} UTC", class_="soft"),
        tag("div", *shown, class_="counts"),
    )


def _state(state: State, words: str | None = None) -> Element:
    return tag("span", words or state.lower(), class_=f"state {state.lower()}")


def _timeline(told: Sequence[ReportedRun], now: float) -> list[Element]:
    lines = lines_of(told, now)
    if not lines:
        return []
    picture, caption = draw_timeline(lines, now)
    drawn = sum(1 for line in lines if line.target)
    if drawn < len(told):
        caption = f"The latest {drawn} of {len(told)} runs. {caption}"
    return [
        tag("h2", "Timeline"),
        tag("div", picture, class_="wide"),
        tag("div", *_legend(told), class_="legend"),
        tag("p", caption, class_="note"),
    ]


def _legend(told: Sequence[ReportedRun]) -> Iterable[Element]:
    """What the colours mean, of those that are there."""
    states = {each.run.state.lower() for each in told} | {
        str(task["state"]).lower() for each in told for task in each.tasks
    }
    for kind, words in LEGEND:
        if kind in {"staging", "waiting"} or kind in states:
            square = tag("rect", class_=kind, width=11.0, height=11.0, rx=2.0)
            yield tag("span", tag("svg", square, width=11.0, height=11.0, aria_hidden="true"), words)
    if any(each.collected for each in told):
        diamond = tag("polygon", class_="collected", points="5.5,0 10,5.5 5.5,11 1,5.5")
        yield tag("span", tag("svg", diamond, width=11.0, height=11.0, aria_hidden="true"), "collected")


def _overview(told: Sequence[ReportedRun]) -> list[Element]:
    if not told:
        return [tag("p", "There are no runs.", class_="soft")]
    names = ("run", "state", "pipeline", "site", "waited", "ran", "CPU", "memory", "exit")
    numeric = names[4:]
    head = [tag("th", name, class_="number" if name in numeric else None) for name in names]
    rows = [_overview_row(each) for each in told]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows))
    return [tag("h2", "Overview"), tag("div", table, class_="wide")]


def _overview_row(each: ReportedRun) -> Element:
    run = each.run
    texts = (
        _seconds(each.waited),
        _seconds(each.ran),
        _seconds(run.status.cpu_seconds),
        None if run.status.memory_bytes is None else size_words(run.status.memory_bytes),
        None if run.status.exit_code is None else str(run.status.exit_code),
    )
    return tag(
        "tr",
        tag("td", link_to(run.id, run.id, class_="id")),
        tag("td", _state(run.state)),
        tag("td", run.spec.pipeline),
        tag("td", run.site),
        *(tag("td", text or "-", class_="number") for text in texts),
    )


def _seconds(value: float | None) -> str | None:
    if value is None:
        return None
    return time_words(value) if value >= 1 else f"{value:.1f} s"


def _run(each: ReportedRun) -> Element:
    run = each.run
    section = tag("section", id=run.id, class_="run")
    section.append(
        tag(
            "header",
            tag("span", run.id, class_="id"),
            _state(run.state),
            tag("span", run.spec.pipeline, f" at {run.site}", class_="soft"),
            link_to("top", "overview", class_="up"),
        )
    )
    if run.status.reason:
        section.append(tag("p", run.status.reason))
    section.append(
        tag("dl", *(_pair(name, value) for name, value in _facts(each) if value not in {None, ""}))
    )
    if len(each.tasks) > 1:
        section.extend([tag("h3", f"{len(each.tasks)} tasks"), _grid(each.tasks)])
    section.extend(
        _table("Answers", ("id", "value"), ((name, _shown(value)) for name, value in _answers(each)))
    )
    section.extend(
        _table(
            "Inputs",
            ("id", "location", "content"),
            ((given["id"], given["location"], given["identity"]) for given in run.spec.inputs),
        )
    )
    section.extend(_outputs(each))
    return section


def _facts(each: ReportedRun) -> list[tuple[str, Child]]:
    run = each.run
    return [
        ("name", run.spec.name),
        ("begun", _moment(run.created)),
        ("started", _moment(run.status.started)),
        ("ended", _moment(run.status.ended)),
        ("waited", _seconds(each.waited)),
        ("ran", _seconds(each.ran)),
        ("CPU", _seconds(run.status.cpu_seconds)),
        ("memory", None if run.status.memory_bytes is None else size_words(run.status.memory_bytes)),
        ("exit code", None if run.status.exit_code is None else str(run.status.exit_code)),
        ("host", run.status.host),
        ("scheduler", f"{run.placement.scheduler}{f', job {run.job}' if run.job else ''}"),
        ("scheduler says", run.status.native),
        ("container", run.placement.container),
        ("hibali", run.spec.version),
        ("pipeline digest", tag("code", f"sha256:{run.spec.pipeline_digest}")),
        ("image", tag("code", run.placement.image) if run.placement.image else None),
        ("folder", tag("code", run.folder) if run.folder else None),
        ("collected to", ", ".join(run.results.collected)),
        ("receipts", tag("code", ", ".join(run.results.receipts)) if run.results.receipts else None),
    ]


def _pair(name: str, value: Child) -> Element:
    broad = not isinstance(value, str) or len(value) > 40
    return tag("div", tag("dt", name), tag("dd", value), class_="broad" if broad else None)


def _moment(text: str) -> str | None:
    return f"{text[:10]} {text[11:19]} UTC" if text else None


def _answers(each: ReportedRun) -> list[tuple[str, Any]]:
    files = {given["id"] for given in each.run.spec.inputs}
    return [(name, value) for name, value in each.run.spec.invocation.items() if name not in files]


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST_VALUE else f"{text[:_MOST_VALUE]}… ({len(text)} characters)"


def _outputs(each: ReportedRun) -> list[Element]:
    """What was collected, with the digests that were proven then."""
    if each.left is None:
        return []
    files = sorted(each.left.files.items())
    rows = ((path, size_words(size), f"sha256:{digest}") for path, (digest, size) in files[:_MOST_OUTPUTS])
    found = _table("Outputs", ("path", "size", "content"), rows)
    if len(files) > _MOST_OUTPUTS:
        found.append(
            tag(
                "p",
                f"and {len(files) - _MOST_OUTPUTS} more, {size_words(each.left.size)} in all",
                class_="note",
            )
        )
    return found


def _table(title: str, names: Sequence[str], rows: Iterable[Sequence[str | bytes]]) -> list[Element]:
    cells = [tag("tr", *(tag("td", tag("code", text)) for text in row)) for row in rows]
    if not cells:
        return []
    head = tag("thead", tag("tr", *(tag("th", name) for name in names)))
    return [tag("h3", title), tag("div", tag("table", head, tag("tbody", *cells)), class_="wide")]


def _grid(tasks: Sequence[Mapping[str, Any]]) -> Element:
    """A square for each task, in the colour of its state."""
    lines = -(-len(tasks) // _SQUARES)
    width, height = min(len(tasks), _SQUARES) * _SQUARE, lines * _SQUARE
    grid = tag("svg", viewBox=f"0 0 {width:g} {height:g}", width=width, height=height, role="img")
    for number, task in enumerate(tasks):
        state = str(task["state"]).lower()
        kind = state if State(task["state"]).ended or state == "running" else "waiting"
        exit_code = task.get("exit_code")
        words = f"task {number + 1}: {state}{f', exit code {exit_code}' if exit_code else ''}"
        x, y = number % _SQUARES * _SQUARE, number // _SQUARES * _SQUARE
        grid.append(tag("rect", tag("title", words), class_=kind, x=x, y=y, width=10.0, height=10.0, rx=2.0))
    return tag("div", grid, class_="wide")
