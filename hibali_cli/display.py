"""Redraw lines at the bottom of a terminal, and fold tables to its width."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rich.cells import cell_len, chop_cells

if TYPE_CHECKING:  # start-up: most commands draw nothing
    from rich.console import ConsoleOptions, RenderableType
    from rich.live import Live
    from rich.text import Text

Lines: TypeAlias = "Callable[[ConsoleOptions], Sequence[RenderableType]]"


class Drawing:
    """Lines drawn at the bottom of the terminal, on stderr; safe to use from any thread. `lines` returns them at each drawing."""

    def __init__(self, lines: Lines, a_second: float) -> None:
        """`lines` must not draw or wait; `a_second` is how often per second it is called."""
        from rich.console import Console  # start-up: only to draw

        self._lines = lines
        self._a_second = a_second
        self._drawing = threading.RLock()
        self._live: Live | None = None
        self._console = Console(stderr=True, highlight=False, no_color=bool(os.environ.get("NO_COLOR")))

    def line(self, text: str) -> None:
        """Print a safe line above it."""
        from rich.text import Text  # start-up: only to draw

        with self._drawing:
            self._console.print(Text(text), soft_wrap=True)

    def show(self) -> None:
        """Draw it, unless it is drawn."""
        from rich.live import Live  # start-up: only to draw

        if self._live is not None:
            return
        with self._drawing:
            self._live = Live(
                get_renderable=self._drawn,
                console=self._console,
                refresh_per_second=self._a_second,
                transient=True,
                redirect_stdout=False,  # results go to stdout, wherever that leads
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
            self._console.show_cursor(True)  # a killed or stopped process must not leave it hidden

    def clear(self) -> None:
        """Clear it, so that something else can be written there."""
        with self._drawing:
            if self._live is not None:
                live, self._live = self._live, None
                live.stop()

    def _drawn(self) -> RenderableType:
        from rich.console import Group  # start-up: only to draw

        options = self._console.options
        return Group(*self._lines(options)[: max(1, options.size.height - 1)])


def plain_line(text: str, style: str = "") -> Text:
    """Return text as one line."""
    from rich.text import Text  # start-up: only to draw

    return Text(text, style=style, no_wrap=True, overflow="crop")


def shortened(text: str, width: int, *, front: float = 0.0) -> str:
    """Return the text, shortened to `width` with a mark at the cut; `front` is the share of the width for its beginning."""
    if cell_len(text) <= width:
        return text
    if width < 4:
        return chop_cells(text, width)[0] if width > 0 else ""
    available = width - 3
    before = int(available * front)
    head = chop_cells(text, before)[0] if before else ""
    tail = chop_cells(text[::-1], available - before)[0][::-1] if available > before else ""
    return f"{head}...{tail}"


_GAP = 2
INDENT = 2  # of the lines below the first one of a record
_LIMITS = (24, 16)


def fold_columns(widths: Sequence[int], available: int) -> list[list[int]]:
    """Return the columns of each line of a record: one line if all fit, else the wide columns are moved below the first line.

    Columns keep their order in each line; a column wider than `available` has a line of its own.
    """
    every = range(len(widths))
    for limit in (available, *_LIMITS):
        narrow = [column for column in every if column == 0 or widths[column] <= limit]
        if _line_width(widths, narrow) <= available:
            break
    [first, *_] = _fill_lines(widths, narrow, available)
    below = [column for column in every if column not in first]
    return [first, *_fill_lines(widths, below, available - INDENT)]


def _fill_lines(widths: Sequence[int], columns: Sequence[int], available: int) -> list[list[int]]:
    lines: list[list[int]] = []
    for column in columns:
        if lines and _line_width(widths, [*lines[-1], column]) <= available:
            lines[-1].append(column)
        else:
            lines.append([column])
    return lines


def _line_width(widths: Sequence[int], columns: Sequence[int]) -> int:
    return sum(widths[column] for column in columns) + _GAP * (len(columns) - 1)


def cut(text: str, width: int) -> str:
    """Return the text in at most `width` columns, its beginning and its end where it is too long."""
    return shortened(text, width, front=0.5)
