"""Write the status report as one HTML file with SVG pictures; pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hibali.amounts import format_duration, format_size
from hibali.text import counted
from hibali_plugins.reports.page import clock, render_page
from hibali_plugins.reports.status import (
    STRIP,
    Day,
    Health,
    Mark,
    Overview,
    ScheduleRow,
    Trouble,
    headline,
    mark_of,
    summary,
)
from hibali_plugins.reports.timeline import Shape
from hibali_plugins.schedules.records import Trigger
from runs.model import State

MARK_KINDS = {
    Mark.DONE: "succeeded",
    Mark.INCOMPLETE: "lost",
    Mark.LATER: "lost",
    Mark.FAILED: "failed",
    Mark.BROKEN: "failed",
    Mark.SKIPPED: "skipped",
    Mark.RUNNING: "running",
}
_HEALTH_KINDS = {
    Health.WELL: "succeeded",
    Health.NEEDS_YOU: "failed",
    Health.PAUSED: "skipped",
    Health.NEW: "waiting",
}
_STEP, _WIDTH, _HEIGHT = 11.0, 9.0, 26.0
# Readable without colours, too: bars of failures are higher.
_HEIGHTS = {Mark.DONE: 15.0, Mark.SKIPPED: 5.0, Mark.RUNNING: 15.0, Mark.INCOMPLETE: 20.0, Mark.LATER: 20.0}
_CHART_WIDTH, _CHART_HEIGHT, _LEFT, _BASE, _MARGIN = 720.0, 130.0, 76.0, 108.0, 14.0
_MAX_ROWS = 100
_SIMPLE_CRON = re.compile(r"(?P<minute>[0-9]{1,2}) (?P<hour>[0-9]{1,2}|\*) \* \* \*")


@dataclass(frozen=True, slots=True)
class _Chart:
    """A bar for each day; `lines` are values on the axis, `marks` days with failures, `labels` days that are named."""

    text: str
    width: float
    height: float
    left: float
    base: float
    lines: Sequence[tuple[float, str]]
    bars: Sequence[Shape]
    marks: Sequence[tuple[float, str]]
    labels: Sequence[tuple[float, str, str]]


@dataclass(frozen=True, slots=True)
class _Cell:
    """One cell of a table: text, or code, or the share of a limit that is used, before the text."""

    text: str
    code: bool = False
    share: float | None = None


def render(overview: Overview, recent: Mapping[str, Any]) -> bytes:
    """Render the document in ASCII; `recent` is what `read_recent` returns."""
    shown_marks = {mark_of(each) for line in overview.lines for each in line.strip}
    days = overview.days if any(day.operations for day in overview.days) else ()
    return render_page(
        "status_page.html",
        ["run_page.css", "status_page.css"],
        title=headline(overview),
        mood="bad" if overview.needing_attention or overview.unreadable else "good" if overview.lines else "",
        summary=summary(overview),
        now=clock(overview.now)[:16],
        troubles=[(each, _since(each)) for each in overview.troubles],
        schedules=[schedule_values(line) for line in overview.lines],
        shown=STRIP,
        strip=(STRIP * _STEP, _HEIGHT),
        legend=[(MARK_KINDS[mark], str(mark)) for mark in Mark if mark in shown_marks],
        charts=_charts(days) if days else (),
        any_failed=any(day.bad for day in days),
        all_verified=bool(overview.operations) and not overview.unproven,
        tables=[table for table in _tables(overview) if table["rows"]],
        runs=[
            (state.lower(), f"{overview.runs[state]} {state.lower()}")
            for state in State
            if overview.runs.get(state)
        ],
        **recent,
    )


def describe_cron(cron: str) -> str:
    """Describe the times of a schedule, in words if they are short."""
    found = _SIMPLE_CRON.fullmatch(cron)
    if found is None:
        return f"by cron {cron}"
    minute, hour = int(found["minute"]), found["hour"]
    return f"every hour at {minute:02d}" if hour == "*" else f"every day at {int(hour):02d}:{minute:02d}"


def _since(trouble: Trouble) -> str:
    if not trouble.since:
        return ""
    often = f"{trouble.times} times in a row, since " if trouble.times > 1 else "Since "
    return f"{often}{_minute(trouble.since)}"


def _minute(text: str) -> str:
    return f"{text[:10]} {text[11:16]}"


def schedule_values(line: ScheduleRow) -> dict[str, Any]:
    """Return what the template shows of a schedule."""
    last = line.last
    state_text = (
        "has not fired yet"
        if last is None
        else f"last {mark_of(last)} {_minute(last.ended or last.began)}{_amount(last)}"
    )
    return {
        "name": line.schedule.name,
        "health": str(line.health),
        "kind": _HEALTH_KINDS[line.health],
        "bars": list(_strip_bars(line.strip)),
        "bars_text": _strip_text(line.schedule.name, line.strip),
        "note": f"running now, {state_text}" if line.running else state_text,
        "command": line.schedule.command,
        "when": describe_cron(line.schedule.cron),
    }


def _amount(firing: Trigger) -> str:
    files = firing.amount("files_moved")
    if not files:
        return ""
    verified = f", verified by {firing.proof}" if firing.proof else ""
    return f": {counted(files, 'file')}, {format_size(firing.amount('bytes_moved'))}{verified}"


def _strip_bars(firings: Sequence[Trigger]) -> Iterable[Shape]:
    """Place the latest firings, the newest at the right."""
    for number, firing in enumerate(firings, STRIP - len(firings)):
        mark = mark_of(firing)
        height = _HEIGHTS.get(mark, 25.0)
        text = f"{_minute(firing.began)}: {mark}"
        yield Shape(MARK_KINDS[mark], number * _STEP + 1, _HEIGHT - 1 - height, _WIDTH, height, text)


def _strip_text(name: str, firings: Sequence[Trigger]) -> str:
    """Describe the bars for screen readers."""
    if not firings:
        return f"{name} has not fired yet"
    counts = Counter(str(mark_of(each)) for each in firings)
    states = ", ".join(f"{count} {mark}" for mark, count in counts.most_common())
    last = firings[-1]
    return f"The last {len(firings)} firings of {name}: {states}; the latest, {_minute(last.began)}: {mark_of(last)}"


def _charts(days: Sequence[Day]) -> list[tuple[str, _Chart]]:
    def moved(day: Day) -> str:
        amount = f"{format_size(day.bytes)} in {counted(day.files, 'file')}"
        return f"{day.day}: {amount}, {counted(day.operations, 'operation')}"

    def rate(day: Day) -> str:
        return f"{day.day}: {format_size(round(day.rate))} a second, for {format_duration(day.seconds)}"

    return [
        ("Moved per day", _chart(days, "Bytes moved per day", lambda day: day.bytes, moved)),
        (
            "Throughput: bytes a second, during transfers",
            _chart(days, "Throughput per day, bytes a second", lambda day: day.rate, rate),
        ),
    ]


def _chart(
    days: Sequence[Day], title: str, value: Callable[[Day], float], text: Callable[[Day], str]
) -> _Chart:
    most = max((value(day) for day in days), default=0.0)
    step = (_CHART_WIDTH - _LEFT) / len(days)
    full = _BASE - _MARGIN
    bars, marks = [], []
    for number, day in enumerate(days):
        x = _LEFT + number * step
        if value(day):
            height = max(value(day) / most * full, 1.0)
            bars.append(Shape("bar", x + 1, _BASE - height, step - 2, height, text(day)))
        if day.bad:
            marks.append((x + step / 2, f"{day.bad} of {day.operations} operations failed on {day.day}"))
    return _Chart(
        text=f"{title}, {days[0].day} to {days[-1].day}: {format_size(round(most))} at most",
        width=_CHART_WIDTH,
        height=_CHART_HEIGHT,
        left=_LEFT,
        base=_BASE,
        lines=[
            (_BASE - share * full, format_size(round(most * share)) if most or not share else "")
            for share in (0.0, 0.5, 1.0)
        ],
        bars=bars,
        marks=marks,
        labels=[
            (_LEFT + (number + 0.5) * step, days[number].day[5:], _anchor(number, len(days)))
            for number in _labelled(len(days))
        ],
    )


def _labelled(count: int) -> list[int]:
    """Choose the days that are named below the axis."""
    return sorted({0, count // 4, count // 2, 3 * count // 4, count - 1})


def _anchor(number: int, count: int) -> str:
    return "start" if number == 0 else "end" if number == count - 1 else "middle"


def _tables(overview: Overview) -> Iterable[dict[str, Any]]:
    yield _table(
        "Not verified",
        "Data that was not verified by content, by site",
        ("site", "place", "files", "size", "best check", "what to do"),
        [
            (
                _Cell(each.site),
                _Cell(each.target, code=True),
                _Cell(str(each.files)),
                _Cell(format_size(each.bytes)),
                _Cell(each.proof),
                _Cell(f"hibali verify {each.target}", code=True),
            )
            for each in overview.unproven[:_MAX_ROWS]
        ],
    )
    yield _table(
        "Will expire or be purged",
        "Will expire or be purged",
        ("when", "what", "where", "what to do"),
        [
            (
                _Cell(_minute(each.when)),
                _Cell(each.what),
                _Cell(each.about, code=True),
                _Cell(each.todo, code=bool(each.todo)),
            )
            for each in overview.expiries[:_MAX_ROWS]
        ],
    )
    yield _table(
        "Sites",
        "Use of sites",
        ("site", "jobs in the queue", "logins", "scheduler commands", "bytes", "pauses requested"),
        [_site(each) for each in overview.usage[:_MAX_ROWS]],
        note="Use of each site in the last hour and in the last day, and its limits.",
    )


def _table(
    heading: str, caption: str, names: Sequence[str], rows: Sequence[Sequence[_Cell]], note: str = ""
) -> dict[str, Any]:
    """Make a table whose rows become cards on a narrow screen, where each cell names its column."""
    named = [list(zip(names, row, strict=True)) for row in rows]
    return {"heading": heading, "caption": caption, "names": names, "rows": named, "note": note}


def _site(each: Mapping[str, Any]) -> tuple[_Cell, ...]:
    hour, day, limits = each["hour"], each["day"], each["limits"]
    queued, most = each["queued_jobs"], limits["queued_jobs"]
    share = max(0.0, min(1.0, queued / most)) if most else 0.0
    interval = limits["login_interval_seconds"]
    refused = [f"{one['by']}: {one['because']}" for one in each["refusals"]]
    bandwidth = f", at most {format_size(limits['bandwidth'])} a second" if limits["bandwidth"] else ""
    return (
        _Cell(each["name"]),
        _Cell(f"{queued} of {most}", share=share),
        _Cell(f"{hour['logins']} and {day['logins']}, one every {interval:g} s at most"),
        _Cell(
            f"{hour['scheduler_commands']} and {day['scheduler_commands']}, every {limits['poll_seconds']:g} s"
        ),
        _Cell(f"{format_size(hour['bytes'])} and {format_size(day['bytes'])}{bandwidth}"),
        _Cell("; ".join(refused) or "no"),
    )
