"""Build escaped HTML (S17), and draw the timeline of runs as SVG."""

from __future__ import annotations

import base64
import hashlib
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hibali.amounts import format_duration
from hibali.text import printable
from runs.model import State
from runs.status import Span

Element = ET.Element
Child = ET.Element | str | bytes | None


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Element:
    """An element with children in their order; None is left out, `class_` is `class`, and `_` in a name is a dash."""
    made = ET.Element(name)
    for key, value in attributes.items():
        if value is not None:
            text = (
                f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else printable(str(value))
            )
            made.set(key.rstrip("_").replace("_", "-"), text)
    for child in children:
        add(made, child)
    return made


def add(parent: Element, child: Child) -> None:
    """One more child behind the others."""
    if isinstance(child, str | bytes):
        text = printable(child)
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + text
        else:
            parent.text = (parent.text or "") + text
    elif child is not None:
        parent.append(child)


def link_to(identifier: str, /, *children: Child, **attributes: str | float | None) -> Element:
    """A link inside the page: there are no others."""
    return tag("a", *children, href=f"#{identifier}", **attributes)


def page_head(title: str, style: str) -> Element:
    """The head of a page of one style: nothing may be fetched, run or sent, and that style is named by its digest."""
    digest = base64.b64encode(hashlib.sha256(style.encode("ascii")).digest()).decode("ascii")
    policy = tag(
        "meta",
        content=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
    )
    policy.set("http-equiv", "Content-Security-Policy")
    sheet = tag("style")
    sheet.text = style
    return tag(
        "head",
        tag("meta", charset="us-ascii"),
        policy,
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        sheet,
    )


def write_page(page: Element) -> bytes:
    """The whole document; letters beyond ASCII are written as references."""
    text: bytes = ET.tostring(page, encoding="us-ascii", method="html")
    return b"<!DOCTYPE html>\n" + text + b"\n"


_WIDTH, _LEFT, _RIGHT = 1000.0, 200.0, 172.0
_TOP = 26.0
_HIGH, _LOW = 36.0, 13.0  # rows of runs, and of their tasks
_BAR, _THIN_BAR = 11.0, 6.0
_MOST_TICKS = 8
_STEPS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
    172800,
    604800,
)
_SHORT = 4  # so many times shorter than the whole, runs are drawn from their own beginnings
_CLASSES = {
    State.PREPARED: "staging",
    State.STAGED: "waiting",
    State.SUBMITTED: "waiting",
    State.WAITING: "waiting",
}
LEGEND = (
    ("staging", "staging"),
    ("waiting", "waiting"),
    ("running", "running"),
    ("succeeded", "ran, and succeeded"),
    ("failed", "failed"),
    ("cancelled", "cancelled"),
    ("lost", "lost"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A run, or one task of it (then without `target`): what is written beside it, and its time in each state."""

    label: str
    spans: Sequence[Span]
    state: State
    below: str = ""
    target: str = ""
    said: str = ""
    collected: Sequence[float] = field(default=())

    @property
    def began(self) -> float:
        """In seconds since the epoch."""
        return self.spans[0].since

    def ended(self, now: float) -> float:
        """The same; `now` for one that is not over."""
        return self.spans[-1].since if self.state.ended else max(now, self.spans[-1].since)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where a moment lies; `origin` is the moment at the left edge, None where each run has its own."""

    origin: float | None
    seconds: float

    def x(self, at: float, began: float) -> float:
        since = at - (began if self.origin is None else self.origin)
        share = min(1.0, max(0.0, since / self.seconds))
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def draw_timeline(lines: Sequence[Line], now: float) -> tuple[Element, str]:
    """The picture and what has to be said of its time; `lines` are not empty, tasks stand below their run."""
    scale = _scale_of(lines, now)
    height = _TOP + sum(_height(line) for line in lines) + 4
    picture = tag("svg", class_="timeline", viewBox=f"0 0 {_WIDTH:g} {height:g}", role="img")
    picture.append(tag("title", "When runs were staged, waited, ran and were collected"))
    stripes, grid, rows = tag("g"), tag("g"), tag("g")
    y = _TOP
    began = lines[0].began
    for number, line in enumerate(lines):
        if line.target:
            began = line.began
        if number % 2 == 0 and line.target:
            stripes.append(tag("rect", class_="stripe", x=0.0, y=y, width=_WIDTH, height=_height(line)))
        rows.append(_row(line, y, scale, began, now))
        y += _height(line)
    for at, text in _ticks(scale):
        x = scale.x(at, 0.0)
        grid.append(tag("line", class_="grid", x1=x, x2=x, y1=_TOP - 6, y2=y))
        grid.append(tag("text", text, class_="soft", x=x, y=_TOP - 12, text_anchor="middle"))
    picture.extend([stripes, grid, rows])
    return picture, _caption(scale)


def _scale_of(lines: Sequence[Line], now: float) -> _Scale:
    runs = [line for line in lines if line.target] or list(lines)
    first = min(line.began for line in runs)
    whole = max(1.0, max(line.ended(now) for line in lines) - first)
    longest = max(1.0, *(line.ended(now) - line.began for line in runs))
    if len(runs) > 1 and longest * _SHORT < whole:
        return _Scale(None, longest)
    return _Scale(first, whole)


def _height(line: Line) -> float:
    return _HIGH if line.target else _LOW


def _row(line: Line, y: float, scale: _Scale, began: float, now: float) -> Element:
    row = tag("g")
    high = bool(line.target)
    top = y + (_HIGH - _BAR) / 2 if high else y + (_LOW - _THIN_BAR) / 2
    if high:
        row.append(link_to(line.target, tag("text", line.label, x=8.0, y=y + 16), class_="id"))
        row.append(tag("text", _cut(line.below, 34), class_="soft", x=8.0, y=y + 29))
    else:
        row.append(tag("text", line.label, class_="soft", x=_LEFT - 10, y=y + 10, text_anchor="end"))
    for number, span in enumerate(line.spans):
        until = span.until if span.until is not None else line.ended(now)
        if span.state.ended or until < span.since:
            continue
        kind = _kind(span.state, line.state)
        left, right = scale.x(span.since, began), scale.x(until, began)
        words = f"{kind}: {format_duration(until - span.since)}, {clock(span.since)} to {clock(until)}"
        wide = max(right - left, 1.5 if until > span.since or number == len(line.spans) - 1 else 0.0)
        height = _BAR if high else _THIN_BAR
        bar = tag("rect", tag("title", words), class_=kind, x=left, y=top, width=wide, height=height, rx=2.0)
        row.append(bar)
    for at in line.collected:
        row.append(_diamond(scale.x(at, began), y + _HIGH / 2, f"collected {clock(at)}"))
    if line.said:
        x = max(scale.x(at, began) for at in (line.ended(now), *line.collected))
        row.append(tag("text", line.said, x=x + 10, y=y + _HIGH / 2 + 4 if high else y + 10))
    return row


def _kind(state: State, outcome: State) -> str:
    """The name of a bar: of the time in which the tool ran, how it ended."""
    if state is State.RUNNING:
        return str(outcome if outcome.ended else State.RUNNING).lower()
    return _CLASSES[state]


def _diamond(x: float, y: float, words: str) -> Element:
    points = f"{x:.1f},{y - 5:.1f} {x + 4:.1f},{y:.1f} {x:.1f},{y + 5:.1f} {x - 4:.1f},{y:.1f}"
    return tag("polygon", tag("title", words), class_="collected", points=points)


def _ticks(scale: _Scale) -> list[tuple[float, str]]:
    """Moments on round numbers, and how they are called."""
    step = next((step for step in _STEPS if scale.seconds / step <= _MOST_TICKS), 0)
    while not step or scale.seconds / step > _MOST_TICKS:
        step = (step or _STEPS[-1]) * 2
    if scale.origin is None:
        count = int(scale.seconds // step)
        return [
            (number * step, format_duration(number * step) if number else "0") for number in range(count + 1)
        ]
    first = -(-scale.origin // step) * step
    count = int((scale.origin + scale.seconds - first) // step)
    moments = [first + number * step for number in range(count + 1)]
    return [(at, _called(at, step)) for at in moments]


def _called(at: float, step: int) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    if step >= 86400 or at % 86400 == 0:
        return f"{moment:%Y-%m-%d}" if step >= 604800 else f"{moment:%m-%d}"
    return f"{moment:%H:%M}" if step >= 60 else f"{moment:%H:%M:%S}"


def _caption(scale: _Scale) -> str:
    if scale.origin is None:
        return (
            f"Each run is drawn from its own beginning; the longest takes {format_duration(scale.seconds)}."
        )
    return f"{clock(scale.origin)} to {clock(scale.origin + scale.seconds)} UTC."


def clock(at: float) -> str:
    """A moment as people read it, UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
