"""The picture of an operation on a terminal: a few calm lines, drawn four times a second, gone when it is over."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hibali.events import Event
from hibali.text import printable
from hibali_cli import output
from hibali_cli.tally import LISTING, WAITING, Tally, size_words

_A_SECOND = 4
_FILES_SHOWN = 4
_BAR_COLUMNS = 60  # a longer one says no more
_GAP = "  "


class Picture:
    """What stands at the foot of the terminal while an operation is under way; safe to call from any thread."""

    def __init__(self, title: str, tally: Tally, *, ends_at_plan: bool) -> None:
        """`ends_at_plan` puts it away for good once there is a plan: what comes then is a result."""
        self._title = printable(title)
        self._tally = tally
        self._guard = threading.Lock()  # around the tally, never around what draws
        self._drawing = threading.RLock()
        self._ends_at_plan = ends_at_plan
        self._live: Live | None = None
        self._console = Console(stderr=True, highlight=False, no_color=bool(os.environ.get("NO_COLOR")))

    def show(self, event: Event) -> None:
        """Take an event into the picture, which comes and goes with what there is to see."""
        with self._guard:
            self._tally.take(event, time.monotonic())
            phase = self._tally.phase
        if phase == WAITING or (self._ends_at_plan and phase != LISTING):
            self.put_away()
        else:
            self._put_up()

    def line(self, text: str) -> None:
        """Print a safe line above the picture."""
        with self._drawing:
            self._console.print(Text(text), soft_wrap=True)

    def _put_up(self) -> None:
        if self._live is not None:
            return
        with self._drawing:
            self._live = Live(
                get_renderable=self._drawn,
                console=self._console,
                refresh_per_second=_A_SECOND,
                transient=True,
                redirect_stdout=False,  # results are for stdout, wherever that goes
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
            self._console.show_cursor(True)  # who is killed or stopped must not leave it hidden

    def put_away(self) -> None:
        """Clear it, so that something else can be written there; the next event brings it back."""
        with self._drawing:
            if self._live is not None:
                live, self._live = self._live, None
                live.stop()

    def _drawn(self) -> RenderableType:
        options = self._console.options
        with self._guard:
            lines = self._lines(options, time.monotonic())
        return Group(*lines[: max(1, options.size.height - 1)])

    def _lines(self, options: ConsoleOptions, now: float) -> list[RenderableType]:
        """As many as are worth it, none wider than the terminal."""
        width, tally = options.max_width - len("^C"), self._tally  # which the terminal adds by itself
        lines: list[RenderableType] = [_line(_shortened(self._title, width, front=0.5), "bold")]
        if tally.phase == LISTING:
            return [*lines, _line(_fitting(tally.facts(now), width))]
        percent = f"{int(tally.share * 100):3d} %"
        bar = min(_BAR_COLUMNS, width - len(percent) - len(_GAP))
        if bar >= 10:
            lines.append(_bar(tally.share, percent, bar))
            lines.append(_line(_fitting(tally.facts(now), width)))
        else:
            lines.append(_line(_fitting([percent.strip(), *tally.facts(now)], width)))
        lines += [_line(text, "dim") for text in self._current(width)]
        retrying = tally.retrying(now)
        if retrying is not None:
            words = f"again {printable(retrying.about)}: {printable(retrying.reason)}"
            lines.append(_line(_shortened(words, width, front=1.0), "yellow"))
        return lines

    def _current(self, width: int) -> list[str]:
        """The large files under way, each with how far it is, in columns."""
        texts = []
        for one in list(self._tally.current.values())[-_FILES_SHOWN:]:
            percent = f"{100 * one.bytes // max(1, one.size):3d} %"
            size = f"{size_words(one.bytes)} of {size_words(one.size)}"
            told = f"{percent}{_GAP}{size:<19}" if width >= 50 else percent
            room = width - len(told) - 2 * len(_GAP)
            if room < 8:
                return []
            name = _shortened(printable(one.path), room)
            room = min(room, _BAR_COLUMNS)
            texts.append(f"{_GAP}{name}{' ' * (room - cell_len(name))}{_GAP}{told}".rstrip())
        return texts


@contextmanager
def picture(title: str, tally: Tally, *, ends_at_plan: bool) -> Iterator[Picture]:
    """Show it on stderr while inside; whatever else is written to the terminal comes first."""
    shown = Picture(title, tally, ends_at_plan=ends_at_plan)
    with output.after(shown.put_away):
        try:
            yield shown
        finally:
            shown.put_away()


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="crop")


def _bar(share: float, percent: str, width: int) -> RenderableType:
    drawn = Table.grid(padding=(0, len(_GAP), 0, 0))
    drawn.add_row(ProgressBar(total=1.0, completed=share, width=width), Text(percent))
    return drawn


def _fitting(facts: list[str], width: int) -> str:
    """As many of them as fit, the first ones first."""
    told = facts[0]
    for fact in facts[1:]:
        if cell_len(told) + len(_GAP) + cell_len(fact) <= width:
            told += _GAP + fact
    return _shortened(told, width, front=1.0)


def _shortened(text: str, width: int, *, front: float = 0.0) -> str:
    """The text, or as much of it as fits, marked where it is cut; `front` is the share that its beginning gets."""
    if cell_len(text) <= width:
        return text
    room = max(1, width - 3)
    before = int(room * front)
    head = chop_cells(text, before)[0] if before else ""
    tail = chop_cells(text[::-1], room - before)[0][::-1] if room > before else ""
    return f"{head}...{tail}"
