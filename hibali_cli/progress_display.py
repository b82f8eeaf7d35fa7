"""Draw the progress of an operation on a terminal: a few lines, four times a second, gone when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import ConsoleOptions, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hibali.amounts import format_size
from hibali.events import Event
from hibali.text import printable
from hibali_cli import output
from hibali_cli.display import Drawing, plain_line, shortened
from transfers.history.tally import LISTING, WAITING, Tally

_REDRAWS_PER_SECOND = 4
_FILES_SHOWN = 4
_BAR_COLUMNS = 60  # columns of the bar
_GAP = "  "


class ProgressDisplay:
    """The progress at the bottom of the terminal during an operation; safe to call from any thread."""

    def __init__(self, title: str, tally: Tally, *, ends_at_plan: bool) -> None:
        """`ends_at_plan` clears it once there is a plan: results follow."""
        self._title = printable(title)
        self._tally = tally
        self._guard = threading.Lock()  # protects the tally, never held while drawing
        self._ends_at_plan = ends_at_plan
        self._drawing = Drawing(self._drawn, _REDRAWS_PER_SECOND)

    def show(self, event: Event) -> None:
        """Update the display with an event, and show or clear it."""
        with self._guard:
            self._tally.update(event, time.monotonic())
            phase = self._tally.phase
        if phase == WAITING or (self._ends_at_plan and phase != LISTING):
            self.clear()
        else:
            self._drawing.show()

    def line(self, text: str) -> None:
        """Print an escaped line above the display."""
        self._drawing.line(text)

    def clear(self) -> None:
        """Clear it, so that something else can be written; the next event draws it again."""
        self._drawing.clear()

    def _drawn(self, options: ConsoleOptions) -> list[RenderableType]:
        with self._guard:
            return self._lines(options, time.monotonic())

    def _lines(self, options: ConsoleOptions, now: float) -> list[RenderableType]:
        """Yield the lines, none wider than the terminal."""
        width, tally = options.max_width - len("^C"), self._tally  # added by the terminal itself
        lines: list[RenderableType] = [plain_line(shortened(self._title, width, front=0.5), "bold")]
        if tally.phase == LISTING:
            return [*lines, plain_line(_fitting(tally.facts(now), width))]
        percent = f"{int(tally.share * 100):3d} %"
        bar = min(_BAR_COLUMNS, width - len(percent) - len(_GAP))
        if bar >= 10:
            lines.append(_bar(tally.share, percent, bar))
            lines.append(plain_line(_fitting(tally.facts(now), width)))
        else:
            lines.append(plain_line(_fitting([percent.strip(), *tally.facts(now)], width)))
        lines += [plain_line(text, "dim") for text in self._current(width)]
        retrying = tally.retrying(now)
        if retrying is not None:
            words = f"retrying {printable(retrying.subject)}: {printable(retrying.reason)}"
            lines.append(plain_line(shortened(words, width, front=1.0), "yellow"))
        return lines

    def _current(self, width: int) -> list[str]:
        """Return the progress of each large file, in columns."""
        texts = []
        for one in list(self._tally.current.values())[-_FILES_SHOWN:]:
            percent = f"{100 * one.bytes // max(1, one.size):3d} %"
            size = f"{format_size(one.bytes)} of {format_size(one.size)}"
            label = f"{percent}{_GAP}{size:<19}" if width >= 50 else percent
            available = width - len(label) - 2 * len(_GAP)
            if available < 8:
                return []
            name = shortened(printable(one.path), available)
            available = min(available, _BAR_COLUMNS)
            texts.append(f"{_GAP}{name}{' ' * (available - cell_len(name))}{_GAP}{label}".rstrip())
        return texts


@contextmanager
def progress_display(title: str, tally: Tally, *, ends_at_plan: bool) -> Iterator[ProgressDisplay]:
    """Show it on stderr while inside; other output to the terminal is written above it."""
    shown = ProgressDisplay(title, tally, ends_at_plan=ends_at_plan)
    with output.after(shown.clear):
        try:
            yield shown
        finally:
            shown.clear()


def _bar(share: float, percent: str, width: int) -> RenderableType:
    drawn = Table.grid(padding=(0, len(_GAP), 0, 0))
    drawn.add_row(ProgressBar(total=1.0, completed=share, width=width), Text(percent))
    return drawn


def _fitting(facts: list[str], width: int) -> str:
    """Return as many facts as fit, the first ones first."""
    label = facts[0]
    for fact in facts[1:]:
        if cell_len(label) + len(_GAP) + cell_len(fact) <= width:
            label += _GAP + fact
    return shortened(label, width, front=1.0)
