"""Draw the progress of a call of the API, in notebooks and terminals."""

from __future__ import annotations

import sys
import threading
import time
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hibali.events import (
    Carried,
    Carrying,
    Ended,
    Event,
    Failed,
    Hashing,
    Listing,
    Moved,
    Planned,
    Retried,
)
from hibali.text import counted, printable
from hibali_api.notebook import notebook_shell
from transfers.history.tally import Tally

if TYPE_CHECKING:  # start-up: transfers need nothing of runs
    from hibali_api.runs import Run


class Progress:
    """A bar of the bytes, with their rate and the number of files; of a run, of its tasks.

    It is drawn with tqdm, if that is installed: as a widget in a notebook that has ipywidgets, as a line in other
    notebooks and in a terminal. Elsewhere nothing is drawn. Use it for one call after the other, from any thread.

    >>> import hibali
    >>> receipt = hibali.push("scans", "scratch:scans", on_event=hibali.Progress())
    """

    def __init__(self, title: str = "", *, draw: bool | None = None) -> None:
        """Draw nothing before the first event.

        Args:
            title: the text to the left of the bar.
            draw: whether to draw a bar; by default in notebooks and terminals.
        """
        self._title = printable(title)
        self._make_bar = _bar_class(draw)
        self._guard = threading.Lock()
        self._bar: Any = None
        self._tally = Tally()

    def __call__(self, event: Event) -> None:
        """Draw an event: `on_event=progress`."""
        with self._guard:
            tally = self._tally
            tally.update(event, time.monotonic())
            match event:
                case Listing() | Planned() | Hashing():
                    self._begin(tally.phase, tally.files_to_do, tally.bytes_to_do)
                case Ended():
                    self._end()
                case Retried() if self._bar is not None:
                    self._bar.set_postfix_str(f"retrying: {printable(event.reason)}")
                case Carried() | Carrying() | Moved() | Failed() if self._bar is not None:
                    self._update(tally)

    def show_run(self, run: Run) -> None:
        """Draw the state of a run, and the number of its tasks that have ended: `run.wait(on_change=progress.show_run)`."""
        tasks = [each.state for each in run.tasks.values()] or [run.state]
        with self._guard:
            if self._bar is None:
                self._begin("", len(tasks), 0, noun="tasks")
            if self._bar is not None:
                description = f"{self._title or printable(run.pipeline)} {run.state.lower()}"
                self._bar.set_description_str(description, refresh=False)
                self._bar.n = sum(1 for state in tasks if state.ended)
                self._bar.refresh()
                if run.state.ended:
                    self._end()

    def close(self) -> None:
        """Leave the bar as it is now."""
        with self._guard:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, phase: str, files: int, size: int, *, noun: str = "files") -> None:
        self._end()
        if self._make_bar is None:
            return
        unit: dict[str, Any] = {"unit": "B", "unit_scale": True} if size else {"unit": f" {noun}"}
        description = f"{self._title} {phase}".strip()
        self._bar = self._make_bar(
            total=size or files or None, desc=description, leave=phase != "listing", **unit
        )

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _update(self, tally: Tally) -> None:
        done = tally.bytes if tally.bytes_to_do else tally.files
        failed = f", {tally.failed:,} failed" if tally.failed else ""
        text = f"{tally.files:,} of {counted(tally.files_to_do, 'file')}{failed}"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(min(done, self._bar.total or done) - self._bar.n)


def _bar_class(draw: bool | None) -> Any:  # noqa: FBT001  # as it was given
    """Return the class of tqdm's bars for this process, None if nothing is drawn."""
    in_notebook = notebook_shell() is not None
    wanted = in_notebook or sys.stderr.isatty() if draw is None else draw
    if not wanted or find_spec("tqdm") is None:
        return None
    widgets = in_notebook and find_spec("ipywidgets") is not None
    return import_module("tqdm.notebook" if widgets else "tqdm").tqdm
