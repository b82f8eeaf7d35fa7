"""Lines at the foot of a terminal that are drawn over and over, and put away for whatever else is written there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.text import Text

Lines = Callable[[ConsoleOptions], Sequence[RenderableType]]


class Drawing:
    """What stands there, on stderr; safe to use from any thread. `lines` makes it anew each time it is drawn."""

    def __init__(self, lines: Lines, a_second: float) -> None:
        """`lines` must not draw or wait; `a_second` is how often they are asked for."""
        self._lines = lines
        self._a_second = a_second
        self._drawing = threading.RLock()
        self._live: Live | None = None
        self._console = Console(stderr=True, highlight=False, no_color=bool(os.environ.get("NO_COLOR")))

    def line(self, text: str) -> None:
        """Print a safe line above it."""
        with self._drawing:
            self._console.print(Text(text), soft_wrap=True)

    def put_up(self) -> None:
        """Draw it, if it does not stand there."""
        if self._live is not None:
            return
        with self._drawing:
            self._live = Live(
                get_renderable=self._drawn,
                console=self._console,
                refresh_per_second=self._a_second,
                transient=True,
                redirect_stdout=False,  # results are for stdout, wherever that goes
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
            self._console.show_cursor(True)  # who is killed or stopped must not leave it hidden

    def put_away(self) -> None:
        """Clear it, so that something else can be written there."""
        with self._drawing:
            if self._live is not None:
                live, self._live = self._live, None
                live.stop()

    def _drawn(self) -> RenderableType:
        options = self._console.options
        return Group(*self._lines(options)[: max(1, options.size.height - 1)])


def plain_line(text: str, style: str = "") -> Text:
    """One line, never two."""
    return Text(text, style=style, no_wrap=True, overflow="crop")
