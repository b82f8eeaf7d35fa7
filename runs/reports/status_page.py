"""Write the status report as one HTML file with SVG pictures; pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hibali import __version__
from hibali.amounts import format_duration, format_size
from runs.model import State
from runs.reports.markup import Child, Element, clock, page_head, tag, write_page
from runs.reports.status import STRIP, Day, Health, Line, Mark, Overview, Trouble, headline, mark_of, summary
from runs.schedules.records import Firing

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
        aria_label=f"{title}, {days[0].day} to {days[-1].day}: {format_size(round(most))} at most",
    )
    for share in (0.0, 0.5, 1.0):
        y = _BASE - share * (_BASE - 14)
        picture.append(tag("line", class_="grid", x1=_LEFT, x2=_CHART_WIDTH, y1=y, y2=y))
        if most or not share:
            label = format_size(round(most * share))
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


_CLASSES = {
    Health.WELL: "succeeded",
    Health.NEEDS_YOU: "failed",
    Health.PAUSED: "skipped",
    Health.NEW: "waiting",
}
_MOST_ROWS = 100
_SIMPLE = re.compile(r"(?P<minute>[0-9]{1,2}) (?P<hour>[0-9]{1,2}|\*) \* \* \*")


def render(overview: Overview) -> bytes:
    """The document in ASCII."""
    folder = Path(__file__).parent
    style = (folder / "run_page.css").read_text("ascii") + (folder / "status_page.css").read_text("ascii")
    body = tag(
        "main",
        _heading(overview),
        *_troubles(overview.troubles),
        *_schedules(overview.lines),
        *_days(overview.days),
        *_unproven(overview),
        *_fading(overview),
        *_sites(overview.usage),
        *_runs(overview),
    )
    foot = tag(
        "footer", f"Written by hibali {__version__} from its ledger; no site was asked. All times are UTC."
    )
    body.append(foot)
    return write_page(tag("html", page_head(headline(overview), style), tag("body", body), lang="en"))


def _heading(overview: Overview) -> Element:
    bad = bool(overview.in_need)
    return tag(
        "header",
        tag("h1", headline(overview), class_="bad" if bad else "good" if overview.lines else None),
        tag("p", summary(overview), class_="lead"),
        tag("p", f"As it was on {clock(overview.now)[:16]} UTC", class_="soft"),
    )


def _troubles(troubles: Sequence[Trouble]) -> list[Element]:
    if not troubles:
        return []
    cards = [
        tag(
            "li",
            tag("h3", each.about),
            tag("p", each.what),
            tag("p", tag("span", "What to do: ", class_="soft"), tag("code", each.todo)),
            tag("p", _since(each), class_="note"),
        )
        for each in troubles
    ]
    return [tag("h2", "What failed, and what to do"), tag("ul", *cards, class_="troubles")]


def _since(each: Trouble) -> str:
    if not each.since:
        return ""
    often = f"{each.times} times in a row, since " if each.times > 1 else "Since "
    return f"{often}{_moment(each.since)}"


def _moment(text: str) -> str:
    return f"{text[:10]} {text[11:16]}"


def _schedules(lines: Sequence[Line]) -> list[Element]:
    if not lines:
        return []
    marks = {mark_of(each) for line in lines for each in line.strip}
    legend = tag("div", *(_legend(mark) for mark in Mark if mark in marks), class_="legend")
    return [
        tag("h2", "Schedules"),
        tag("p", "The latest thirty firings of each, the newest at the right.", class_="note"),
        tag("ul", *(_schedule(line) for line in lines), class_="schedules"),
        legend,
    ]


def _legend(mark: Mark) -> Element:
    square = tag("rect", class_=CLASSES[mark], width=11.0, height=11.0, rx=2.0)
    return tag("span", tag("svg", square, width=11.0, height=11.0, aria_hidden="true"), str(mark))


def _schedule(line: Line) -> Element:
    last = line.last
    told = (
        "has not fired yet"
        if last is None
        else f"last {mark_of(last)} {_moment(last.ended or last.began)}{_amount(line)}"
    )
    state = "running now, " if line.running else ""
    return tag(
        "li",
        tag(
            "div",
            tag("h3", line.plan.name),
            tag("span", str(line.health), class_=f"state {_CLASSES[line.health]}"),
            class_="name",
        ),
        tag("div", draw_strip(line.plan.name, line.strip), tag("p", f"{state}{told}", class_="note")),
        tag(
            "p",
            tag("code", line.plan.command),
            tag("span", f" {cron_words(line.plan.cron)}", class_="soft when"),
            class_="command",
        ),
    )


def _amount(line: Line) -> str:
    last = line.last
    if last is None or not last.amount("files_moved"):
        return ""
    proof = f", proven by {last.proof}" if last.proof else ""
    return f": {last.amount('files_moved')} files, {format_size(last.amount('bytes_moved'))}{proof}"


def _days(days: Sequence[Day]) -> list[Element]:
    if not any(day.operations for day in days):
        return []
    moved = draw_days(days, "Bytes moved per day", lambda day: day.bytes, _day_words)
    fast = draw_days(days, "Throughput per day, bytes a second", lambda day: day.rate, _rate_words)
    return [
        tag("h2", "Day by day"),
        tag("h3", "Moved per day"),
        moved,
        tag("h3", "Throughput: bytes a second, while something was carried"),
        fast,
        tag("p", "A dot above a day: something did not end well on it.", class_="note")
        if any(day.bad for day in days)
        else tag("p"),
    ]


def _day_words(day: Day) -> str:
    return f"{day.day}: {format_size(day.bytes)} in {day.files} files, {day.operations} operations"


def _rate_words(day: Day) -> str:
    return f"{day.day}: {format_size(round(day.rate))} a second, for {format_duration(day.seconds)}"


def _unproven(overview: Overview) -> list[Element]:
    if not overview.unproven:
        return (
            []
            if not overview.operations
            else [
                tag("h2", "Proof"),
                tag("p", "Everything that the ledger knows to have moved is proven by its content."),
            ]
        )
    rows = (
        (
            each.site,
            tag("code", each.target),
            str(each.files),
            format_size(each.bytes),
            each.proof,
            tag("code", f"hibali verify {each.target}"),
        )
        for each in overview.unproven
    )
    names = ("site", "place", "files", "size", "best proof", "what to do")
    return [tag("h2", "Not proven"), _table("Data without a proof by content, by site", names, rows)]


def _fading(overview: Overview) -> list[Element]:
    if not overview.fading:
        return []
    rows = (
        (_moment(each.when), each.what, tag("code", each.about), tag("code", each.todo) if each.todo else "")
        for each in overview.fading
    )
    title = "Will expire or be purged"
    return [tag("h2", title), _table(title, ("when", "what", "where", "what to do"), rows)]


def _sites(usage: Sequence[Any]) -> list[Element]:
    if not usage:
        return []
    names = ("site", "jobs in the queue", "logins", "commands to schedulers", "bytes", "left alone")
    return [
        tag("h2", "Sites"),
        tag(
            "p",
            "What was asked of each in the last hour and in the last day, beside what it may be.",
            class_="note",
        ),
        _table("What was asked of sites", names, (_site(each) for each in usage)),
    ]


def _site(each: Any) -> tuple[Child, ...]:
    hour, day, limits = each["hour"], each["day"], each["limits"]
    queued, most = each["queued_jobs"], limits["queued_jobs"]
    share = queued / most if most else 0.0
    interval = limits["login_interval_seconds"]
    refused = [f"{one['by']}: {one['because']}" for one in each["refusals"]]
    bandwidth = f", at most {format_size(limits['bandwidth'])} a second" if limits["bandwidth"] else ""
    return (
        each["name"],
        tag("span", draw_share(share, f"{queued} of {most} jobs"), f"{queued} of {most}"),
        f"{hour['logins']} and {day['logins']}, one every {interval:g} s at most",
        f"{hour['scheduler_commands']} and {day['scheduler_commands']}, every {limits['poll_seconds']:g} s",
        f"{format_size(hour['bytes'])} and {format_size(day['bytes'])}{bandwidth}",
        "; ".join(refused) or "no",
    )


def _runs(overview: Overview) -> list[Element]:
    if not overview.runs:
        return []
    shown = [
        tag("span", f"{overview.runs[state]} {state.lower()}", class_=f"state {state.lower()}")
        for state in State
        if overview.runs.get(state)
    ]
    return [tag("h2", "Runs"), tag("div", *shown, class_="counts")]


def _table(title: str, names: Sequence[str], rows: Iterable[Sequence[Child]]) -> Element:
    """On a narrow screen each row is a card, and each cell says what it is."""
    body = [
        tag(
            "tr",
            *(
                _cell(name, value, first=number == 0)
                for number, (name, value) in enumerate(zip(names, row, strict=True))
            ),
        )
        for row in list(rows)[:_MOST_ROWS]
    ]
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names)))
    return tag("table", tag("caption", title), head, tag("tbody", *body), class_="cards")


def _cell(name: str, value: Child, *, first: bool) -> Element:
    return tag("th" if first else "td", tag("span", value), scope="row" if first else None, data_name=name)


def cron_words(cron: str) -> str:
    """When a schedule fires, as people say it where that is short, else as it is written."""
    found = _SIMPLE.fullmatch(cron)
    if found is None:
        return f"by cron {cron}"
    minute, hour = int(found["minute"]), found["hour"]
    return f"every hour at {minute:02d}" if hour == "*" else f"every day at {int(hour):02d}:{minute:02d}"
