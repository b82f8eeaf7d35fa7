"""The pictures of the report, as SVG with words for those who do not see them; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from hibali.amounts import size_words
from runs.overview.health import STRIP, Mark, mark_of
from runs.overview.model import Day
from runs.report.markup import Element, tag
from runs.unattended.firings import Firing

CLASSES = {
    Mark.DONE: "succeeded",
    Mark.INCOMPLETE: "lost",
    Mark.LATER: "lost",
    Mark.FAILED: "failed",
    Mark.BROKEN: "failed",
    Mark.SKIPPED: "skipped",
    Mark.RUNNING: "running",
}
_STEP, _WIDTH, _HIGH = 11.0, 9.0, 26.0
# Told apart without colours, too: what is well is low, what is not is high.
_HEIGHTS = {Mark.DONE: 15.0, Mark.SKIPPED: 5.0, Mark.RUNNING: 15.0, Mark.INCOMPLETE: 20.0, Mark.LATER: 20.0}
_CHART_WIDTH, _CHART_HEIGHT, _LEFT, _BASE = 720.0, 130.0, 76.0, 108.0


def draw_strip(name: str, firings: Sequence[Firing]) -> Element:
    """The latest firings as bars, the newest at the right."""
    picture = tag(
        "svg",
        class_="strip",
        viewBox=f"0 0 {STRIP * _STEP:g} {_HIGH:g}",
        role="img",
        aria_label=strip_words(name, firings),
    )
    first = STRIP - len(firings)
    picture.append(tag("line", class_="grid", x1=0.0, x2=STRIP * _STEP, y1=_HIGH - 0.5, y2=_HIGH - 0.5))
    for number, firing in enumerate(firings, first):
        mark = mark_of(firing)
        height = _HEIGHTS.get(mark, 25.0)
        words = f"{firing.began[:10]} {firing.began[11:16]}: {mark}"
        x, y = number * _STEP + 1, _HIGH - 1 - height
        bar = tag(
            "rect", tag("title", words), class_=CLASSES[mark], x=x, y=y, width=_WIDTH, height=height, rx=1.5
        )
        picture.append(bar)
    return picture


def strip_words(name: str, firings: Sequence[Firing]) -> str:
    """The same in words."""
    if not firings:
        return f"{name} has not fired yet"
    counts = Counter(str(mark_of(each)) for each in firings)
    told = ", ".join(f"{count} {mark}" for mark, count in counts.most_common())
    last = firings[-1]
    return f"The last {len(firings)} firings of {name}: {told}; the latest, {last.began[:10]} {last.began[11:16]}: {mark_of(last)}"


def draw_days(
    days: Sequence[Day], title: str, value: Callable[[Day], float], words: Callable[[Day], str]
) -> Element:
    """One bar a day; a day on which something went wrong has a mark above it."""
    most = max((value(day) for day in days), default=0.0)
    picture = tag(
        "svg",
        class_="days",
        viewBox=f"0 0 {_CHART_WIDTH:g} {_CHART_HEIGHT:g}",
        role="img",
        aria_label=f"{title}, {days[0].day} to {days[-1].day}: {size_words(round(most))} at most",
    )
    for share in (0.0, 0.5, 1.0):
        y = _BASE - share * (_BASE - 14)
        picture.append(tag("line", class_="grid", x1=_LEFT, x2=_CHART_WIDTH, y1=y, y2=y))
        if most or not share:
            label = size_words(round(most * share))
            picture.append(tag("text", label, class_="soft", x=_LEFT - 6, y=y + 4, text_anchor="end"))
    step = (_CHART_WIDTH - _LEFT) / len(days)
    for number, day in enumerate(days):
        x = _LEFT + number * step
        height = value(day) / most * (_BASE - 14) if most else 0.0
        if height:
            high = max(height, 1.0)
            bar = tag(
                "rect",
                tag("title", words(day)),
                class_="bar",
                x=x + 1,
                y=_BASE - high,
                width=step - 2,
                height=high,
            )
            picture.append(bar)
        if day.bad:
            mark = f"{day.bad} of {day.operations} operations did not end well on {day.day}"
            picture.append(tag("circle", tag("title", mark), class_="failed", cx=x + step / 2, cy=6.0, r=3.0))
    for number in _labelled(len(days)):
        x = _LEFT + (number + 0.5) * step
        anchor = "start" if number == 0 else "end" if number == len(days) - 1 else "middle"
        picture.append(
            tag("text", days[number].day[5:], class_="soft", x=x, y=_BASE + 16, text_anchor=anchor)
        )
    return picture


def _labelled(count: int) -> list[int]:
    """Which days are named below the axis."""
    return sorted({0, count // 4, count // 2, 3 * count // 4, count - 1})


def draw_share(share: float, words: str) -> Element:
    """How much of a budget is used."""
    width = max(0.0, min(1.0, share)) * 100
    return tag(
        "svg",
        tag("rect", class_="stripe", x=0.0, y=0.0, width=100.0, height=8.0, rx=2.0),
        tag("rect", class_="failed" if share >= 1 else "bar", x=0.0, y=0.0, width=width, height=8.0, rx=2.0),
        class_="share",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        role="img",
        aria_label=words,
    )
