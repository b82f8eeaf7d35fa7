"""Runs as a table that fits a terminal, and the words of each; nothing is drawn here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from hibali.amounts import time_words
from hibali.text import printable
from hibali_cli.drawing import plain_line, shortened
from runs.model import Run, State

_HEADINGS = ("run", "state", "for", "pipeline", "site", "name", "remark")
_RUN, _STATE, _FOR, _PIPELINE, _SITE, _NAME, _ABOUT = range(len(_HEADINGS))
_IMPORTANCE = (_RUN, _STATE, _FOR, _PIPELINE, _SITE, _NAME)  # the last column gets what is left
_MOST = (24, 9, 12, 30, 20, 20, 80)
_LEAST_ABOUT = 10
_GAP = "  "
_STYLES = {
    State.RUNNING: "cyan",
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.CANCELLED: "magenta",
    State.LOST: "yellow",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One run as it was last heard of; `since` is when its state began, in seconds since the epoch."""

    run: Run
    since: float
    about: str

    def cells(self, now: float) -> tuple[str, ...]:
        """What stands in the columns, safe to show. How long is told of what is not over."""
        run = self.run
        lasting = "" if run.state.ended else time_words(max(0.0, now - self.since))
        texts = (run.id, run.state, lasting, run.pipeline, run.site, run.name, self.about)
        return tuple(printable(text) for text in texts)


def row_of(run: Run, since: float) -> Row:
    """The row of a run, with how its tasks are where it has several."""
    tasks = run.to_record()["tasks"]
    if len(tasks) > 1:
        return Row(run, since, count_states(task["state"] for task in tasks))
    return Row(run, since, about_run(run))


def about_run(run: Run) -> str:
    """The scheduler's own word, its reason, and how the tool ended."""
    if run.state is State.SUCCEEDED:
        return ""
    if run.exit_code is not None and not run.reason:
        return f"exit code {run.exit_code}"
    if run.native and run.reason and run.native not in run.reason:
        return f"{run.native}: {run.reason}"
    if run.waits and run.reason:
        return run.reason
    if not run.job and not run.state.ended:
        return "not submitted"
    return run.reason or run.native


def count_states(states: Iterable[str]) -> str:
    """How many are in each state: `3 running, 12 waiting`, those that are over last."""
    counts = Counter(states)
    order = [state for state in State if not state.ended][::-1] + [state for state in State if state.ended]
    return ", ".join(f"{counts[state]} {state.lower()}" for state in order if counts[state])


def table_lines(rows: Sequence[Row], width: int, height: int, now: float) -> list[Text]:
    """A heading, the counts, and as many rows as there is room for: what is not over comes before what is."""
    told = f"{len(rows)} runs: {count_states(row.run.state for row in rows)}"
    lines = [plain_line(shortened(told, width, front=1.0), "bold")]
    shown = _most_wanted(rows, max(1, height - 3))
    cells = [row.cells(now) for row in shown]
    widths = _widths(cells, width)
    lines.append(plain_line(_joined(_HEADINGS, widths), "dim"))
    for row, texts in zip(shown, cells, strict=True):
        line = plain_line(_joined(texts, widths))
        style = _STYLES.get(row.run.state)
        if style and widths[_STATE]:
            start = widths[_RUN] + len(_GAP)
            line.stylize(style, start, start + len(row.run.state))
        lines.append(line)
    if len(shown) < len(rows):
        lines.append(plain_line(f"... and {len(rows) - len(shown)} more", "dim"))
    return lines


def _most_wanted(rows: Sequence[Row], most: int) -> list[Row]:
    """In the order in which they were begun."""
    if len(rows) <= most:
        return list(rows)
    latest_ends = sorted((row for row in rows if row.run.state.ended), key=lambda row: -row.since)
    kept = ([row for row in rows if not row.run.state.ended] + latest_ends)[: max(1, most - 1)]
    wanted = {row.run.id for row in kept}
    return [row for row in rows if row.run.id in wanted]


def _widths(cells: Sequence[Sequence[str]], room: int) -> list[int]:
    """How wide each column is, 0 for one that is left out: the less important ones give way."""
    widths = [0] * len(_HEADINGS)
    left = room
    for column in _IMPORTANCE:
        longest = max((cell_len(row[column]) for row in cells), default=0)
        wanted = min(_MOST[column], max(longest, len(_HEADINGS[column]))) if longest else 0
        taken = wanted + (len(_GAP) if column != _RUN else 0)
        if wanted and (taken <= left or column == _RUN):
            widths[column] = min(wanted, left)
            left -= min(taken, left)
    longest = max((cell_len(row[_ABOUT]) for row in cells), default=0)
    if longest and left - len(_GAP) >= _LEAST_ABOUT:
        widths[_ABOUT] = min(left - len(_GAP), _MOST[_ABOUT], max(longest, len(_HEADINGS[_ABOUT])))
    return widths


def _joined(texts: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for column, (text, width) in enumerate(zip(texts, widths, strict=True)):
        if width:
            cut = shortened(text, width, front=1.0 if column == _ABOUT else 0.6)
            parts.append(cut + " " * (width - cell_len(cut)))
    return _GAP.join(parts).rstrip()
