"""Redraw lines at the bottom of a terminal, and fit tables to its width."""

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
    available = max(1, width - 3)
    before = int(available * front)
    head = chop_cells(text, before)[0] if before else ""
    tail = chop_cells(text[::-1], available - before)[0][::-1] if available > before else ""
    return f"{head}...{tail}"


_GAP = 2
_IDENTIFIER = 24  # columns of the id of a run or an operation, which users copy
_LEAST = 8


def fitting_widths(
    natural: Sequence[int], headings: Sequence[int], numeric: Sequence[bool], available: int
) -> list[int]:
    """Return the widths of as many columns as fit into `available`, the first ones first.

    The widest columns shrink first. Numbers are never cut, and the first column keeps the width of an id.
    """
    least = [
        width if number else min(width, max(heading, _IDENTIFIER if position == 0 else _LEAST))
        for position, (width, heading, number) in enumerate(zip(natural, headings, numeric, strict=True))
    ]
    count = len(natural)
    while count > 1 and sum(least[:count]) + _GAP * (count - 1) > available:
        count -= 1
    left = available - _GAP * (count - 1)
    if count == 1:
        return [min(natural[0], max(1, left))]
    low, high = 0, max(natural[:count])
    while low < high:  # the largest width that fits
        middle = (low + high + 1) // 2
        taken = sum(
            max(smallest, min(width, middle)) for width, smallest in zip(natural[:count], least, strict=False)
        )
        low, high = (middle, high) if taken <= left else (low, middle - 1)
    return [max(smallest, min(width, low)) for width, smallest in zip(natural[:count], least, strict=False)]


def cut(text: str, width: int) -> str:
    """Return the text in at most `width` columns, its beginning and its end where it is too long."""
    return shortened(text, width, front=0.5)
