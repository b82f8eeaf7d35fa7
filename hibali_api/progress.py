"""Draw the progress of the calls of a `with` block, in notebooks and terminals."""

from __future__ import annotations

import contextlib
import html
import shutil
import sys
import threading
import time
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from hibali.events import Event
from hibali.text import counted, printable
from hibali_api.calls import watching
from hibali_api.notebook import notebook_shell
from transfers.history.tally import LISTING, WAITING, Tally

if TYPE_CHECKING:  # start-up: transfers need nothing of runs
    from hibali_api.runs import Run

_SECONDS = 0.25  # between two drawings


class _Drawing(Protocol):
    """One place that is drawn again and again."""

    def draw(self, share: float | None, text: str) -> None:
        """Draw a share from 0 to 1, None if it is not known, and a text without control characters."""

    def clear(self) -> None:
        """Remove what was drawn."""


class _NotebookOutput:
    """An output of the cell in which this is made, updated in place."""

    def __init__(self) -> None:
        self._display = sys.modules["IPython"].display.display({"text/plain": ""}, raw=True, display_id=True)

    def draw(self, share: float | None, text: str) -> None:
        """See _Drawing."""
        value = "" if share is None else f' max="1" value="{share:.3f}"'
        markup = f'<div class="hibali"><progress{value}></progress> {html.escape(text)}</div>'
        self._display.update({"text/plain": text, "text/html": markup}, raw=True)

    def clear(self) -> None:
        """See _Drawing."""
        self._display.update({"text/plain": "", "text/html": ""}, raw=True)


class _TerminalLine:
    """The last line of standard error."""

    def draw(self, share: float | None, text: str) -> None:
        """See _Drawing."""
        line = text if share is None else f"{int(100 * share):3d} %  {text}"
        self._write(line[: shutil.get_terminal_size().columns - 1])

    def clear(self) -> None:
        """See _Drawing."""
        self._write("")

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed terminal ends no transfer
            sys.stderr.write(f"\r\x1b[2K{line}")
            sys.stderr.flush()


class Progress:
    """What `hibali.progress` returns: a context manager, and a listener for calls in other threads (`on_event=`)."""

    def __init__(self, title: str) -> None:
        self._title = printable(title)
        self._guard = threading.Lock()
        self._drawing: _Drawing | None = None
        self._tally = Tally()
        self._phase, self._drawn_at = WAITING, 0.0
        self._token: Token[Any] | None = None

    def __enter__(self) -> Self:
        if notebook_shell() is not None:
            self._drawing = _NotebookOutput()
        elif sys.stderr.isatty():
            self._drawing = _TerminalLine()
        self._token = watching.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            watching.reset(self._token)
        with self._guard:
            self._clear()
            self._drawing = None

    def __call__(self, event: Event) -> None:
        """Draw an event."""
        with self._guard:
            now, tally = time.monotonic(), self._tally
            tally.update(event, now)
            if tally.phase == WAITING:
                self._clear()
            elif tally.phase != self._phase or now - self._drawn_at >= _SECONDS:
                retrying = tally.retrying(now)
                facts = tally.facts(now) + (
                    [] if retrying is None else [f"retrying: {printable(retrying.reason)}"]
                )
                self._draw(None if tally.phase == LISTING else tally.share, self._title, *facts)
                self._drawn_at = now
            self._phase = tally.phase

    def show_run(self, run: Run) -> None:
        """Draw the state of a run, and how many of its tasks have ended."""
        tasks = [each.state for each in run.tasks.values()] or [run.state]
        ended = sum(1 for state in tasks if state.ended)
        done = f"{ended:,} of {counted(len(tasks), 'task')} ended"
        with self._guard:
            if run.state.ended:
                self._clear()
            else:
                name = self._title or printable(run.pipeline)
                self._draw(ended / len(tasks), f"{name} {run.state.lower()}", done)

    def _draw(self, share: float | None, *texts: str) -> None:
        if self._drawing is not None:
            self._drawing.draw(share, "  ".join(filter(None, texts)))

    def _clear(self) -> None:
        if self._drawing is not None:
            self._drawing.clear()


def progress(title: str = "") -> Progress:
    """Show the progress of every call in a `with` block while it lasts: in a notebook as a bar below the cell, in a terminal as a line.

    Elsewhere nothing is drawn. Transfers show bytes, rate and files, `Run.wait` the state and the tasks. What is drawn is removed at
    the end of each call and of the block; exceptions pass through. Calls in threads that the block starts are shown if they get
    `on_event=shown`, where `shown` is what `with hibali.progress() as shown:` returns.

    Args:
        title: the text to the left.

    >>> import hibali
    >>> with hibali.progress():
    ...     receipt = hibali.push("scans", "scratch:scans")
    """
    return Progress(title)
