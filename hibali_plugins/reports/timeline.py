"""Compute the bars and labels of the timeline of runs, and their positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hibali.amounts import format_duration
from hibali_plugins.reports.page import clock
from runs.model import State
from runs.status import Span

_WIDTH, _LEFT, _RIGHT = 1000.0, 200.0, 172.0
_TOP = 26.0
_RUN_HEIGHT, _TASK_HEIGHT = 36.0, 13.0
_BAR, _THIN_BAR = 11.0, 6.0
_MAX_LABEL = 34  # characters
_MAX_TICKS = 8
_MINUTE, _HOUR, _DAY, _WEEK = 60, 3600, 86400, 604800
_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, _WEEK),
)
_OWN_ORIGIN = 4  # if the whole span is this many times longer than the runs, each is drawn from its own start
_KINDS = {
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
class Row:
    """A run, or one task of it (then without `target`): its labels and its time in each state."""

    label: str
    spans: Sequence[Span]
    state: State
    subtitle: str = ""
    target: str = ""
    summary: str = ""
    collected: Sequence[float] = field(default=())

    @property
    def began(self) -> float:
        """Seconds since the epoch."""
        return self.spans[0].since

    def ended(self, now: float) -> float:
        """Return seconds since the epoch; `now` while the run has not ended."""
        return self.spans[-1].since if self.state.ended else max(now, self.spans[-1].since)

    @property
    def height(self) -> float:
        """The height in units of the picture."""
        return _RUN_HEIGHT if self.target else _TASK_HEIGHT


@dataclass(frozen=True, slots=True)
class Shape:
    """A bar or a diamond, the class that gives its colour, and the text that explains it."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """A row with its place in the picture."""

    row: Row
    y: float
    striped: bool
    bars: Sequence[Shape]
    diamonds: Sequence[Shape]
    summary_x: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """All that the template draws."""

    width: float
    height: float
    label_x: float
    top: float
    rows: Sequence[DrawnRow]
    ticks: Sequence[tuple[float, str]]
    caption: str


@dataclass(frozen=True, slots=True)
class _Scale:
    """Convert times to coordinates; `origin` is the moment at the left edge, None where each run has its own."""

    origin: float | None
    seconds: float

    def x(self, at: float, began: float) -> float:
        since = at - (began if self.origin is None else self.origin)
        share = min(1.0, max(0.0, since / self.seconds))
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def draw_timeline(rows: Sequence[Row], now: float) -> Timeline:
    """Place rows, which are not empty; tasks come after their run."""
    scale = _scale_of(rows, now)
    drawn, y = [], _TOP
    began = rows[0].began
    for number, row in enumerate(rows):
        if row.target:
            began = row.began
        moments = (row.ended(now), *row.collected)
        drawn.append(
            DrawnRow(
                row=row,
                y=y,
                striped=number % 2 == 0 and bool(row.target),
                bars=list(_bars(row, y, scale, began, now)),
                diamonds=[_diamond(scale.x(at, began), y + row.height / 2, at) for at in row.collected],
                summary_x=max(scale.x(at, began) for at in moments) + 10,
            )
        )
        y += row.height
    ticks = [(scale.x(at, 0.0), text) for at, text in _ticks(scale)]
    return Timeline(_WIDTH, y + 4, _LEFT - 10, _TOP, drawn, ticks, _caption(scale))


def shorten(text: str) -> str:
    """Shorten a label that is too long for the picture."""
    return text if len(text) <= _MAX_LABEL else text[: _MAX_LABEL - 1] + "…"


def _scale_of(rows: Sequence[Row], now: float) -> _Scale:
    runs = [row for row in rows if row.target] or list(rows)
    first = min(row.began for row in runs)
    whole = max(1.0, max(row.ended(now) for row in rows) - first)
    longest = max(1.0, *(row.ended(now) - row.began for row in runs))
    if len(runs) > 1 and longest * _OWN_ORIGIN < whole:
        return _Scale(None, longest)
    return _Scale(first, whole)


def _bars(row: Row, y: float, scale: _Scale, began: float, now: float) -> Iterator[Shape]:
    height = _BAR if row.target else _THIN_BAR
    top = y + (row.height - height) / 2
    for number, span in enumerate(row.spans):
        until = span.until if span.until is not None else row.ended(now)
        if span.state.ended or until < span.since:
            continue
        kind = _kind(span.state, row.state)
        left, right = scale.x(span.since, began), scale.x(until, began)
        text = f"{kind}: {format_duration(until - span.since)}, {clock(span.since)} to {clock(until)}"
        visible = until > span.since or number == len(row.spans) - 1
        yield Shape(kind, left, top, max(right - left, 1.5 if visible else 0.0), height, text)


def _kind(state: State, outcome: State) -> str:
    """Return the colour class of a bar; while the tool ran, that of the run's result."""
    if state is State.RUNNING:
        return str(outcome if outcome.ended else State.RUNNING).lower()
    return _KINDS[state]


def _diamond(x: float, y: float, at: float) -> Shape:
    return Shape("collected", x, y, 8.0, 10.0, f"collected {clock(at)}")


def _ticks(scale: _Scale) -> list[tuple[float, str]]:
    """Choose times at round numbers, and label them."""
    step = next((step for step in _STEPS if scale.seconds / step <= _MAX_TICKS), 0)
    while not step or scale.seconds / step > _MAX_TICKS:
        step = (step or _STEPS[-1]) * 2
    if scale.origin is None:
        count = int(scale.seconds // step)
        return [
            (number * step, format_duration(number * step) if number else "0") for number in range(count + 1)
        ]
    first = -(-scale.origin // step) * step
    count = int((scale.origin + scale.seconds - first) // step)
    return [(at, _tick_label(at, step)) for at in (first + number * step for number in range(count + 1))]


def _tick_label(at: float, step: int) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    if step >= _DAY or at % _DAY == 0:
        return f"{moment:%Y-%m-%d}" if step >= _WEEK else f"{moment:%m-%d}"
    return f"{moment:%H:%M}" if step >= _MINUTE else f"{moment:%H:%M:%S}"


def _caption(scale: _Scale) -> str:
    if scale.origin is None:
        return f"Each run is drawn from its own start; the longest takes {format_duration(scale.seconds)}."
    return f"{clock(scale.origin)} to {clock(scale.origin + scale.seconds)} UTC."
