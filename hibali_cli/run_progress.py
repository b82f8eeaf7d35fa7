"""Show on a terminal how runs are that somebody waits for, and say after an interruption that they continue."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import ConsoleOptions
from rich.text import Text

from hibali.amounts import time_words
from hibali.events import Event, Listener, Retried
from hibali.text import printable
from hibali_cli import output
from hibali_cli.drawing import Drawing, plain_line, shortened
from hibali_cli.interruption import hint_if_interrupted
from hibali_cli.options import Common
from hibali_cli.run_table import Row, row_of, table_lines
from runs.model import Run, ignore_run
from runs.status import course_of_run
from runs.store import Book

_A_SECOND = 1
_MOST_NAMED = 5
_TROUBLE_SECONDS = 5.0  # how long a question that failed is shown beyond the pause after it


class Following(NamedTuple):
    """Where events go while runs are followed, and what hears of each change of a run."""

    tell: Listener
    changed: Callable[[Run], None]


@contextmanager
def following(common: Common, book: Book, runs: Sequence[Run], tell: Listener) -> Iterator[Following]:
    """Draw the runs on stderr while they are followed, where that is a terminal.

    An interruption says that they continue, and how to follow them.
    """
    ids = [run.id for run in runs if not run.state.final]
    drawn = (
        common.progress
        and ids
        and output.can_be_drawn_on(sys.stderr)
        and not (common.json and output.is_terminal(sys.stdout))
    )
    with hint_if_interrupted(lambda: continues(book, ids)):
        if not drawn:
            yield Following(tell, ignore_run)
            return
        shown = _Shown(book, tell)
        with output.after(shown.put_away):
            try:
                for run_id in ids:
                    shown.take(book.load(run_id))
                yield Following(shown.tell, shown.take)
            finally:
                shown.put_away()


def continues(book: Book, run_ids: Sequence[str]) -> str:
    """Say what becomes of runs that nobody follows any more, and how to follow them."""
    runs = [book.load(each) for each in run_ids]
    left = [run for run in runs if not run.state.final]
    if not left:
        return ""
    named = " ".join(run.id for run in left) if len(left) <= _MOST_NAMED else "ID..."
    if len(left) > 1:
        return f"The runs continue. To follow them: hibali runs wait {named}"
    [run] = left
    if run.waits:
        return f"The run is not submitted yet: the queue has no room. To submit it when there is some: hibali runs wait {named}"
    cancel = f"; to end it: hibali runs cancel {named}"
    return f"The run continues at {run.site}. To follow it: hibali runs wait {named}{cancel}"


class _Shown:
    """One line for a run, a table for several; safe to call from any thread."""

    def __init__(self, book: Book, tell: Listener) -> None:
        self._book = book
        self._tell = tell
        self._rows: dict[str, Row] = {}
        self._guard = threading.Lock()
        self._trouble = ""
        self._trouble_until = 0.0
        self._drawing = Drawing(self._lines, _A_SECOND)

    def take(self, run: Run) -> None:
        """A run is in another state now."""
        spans = course_of_run(run, self._book.records(run.id))
        with self._guard:
            self._rows[run.id] = row_of(run, spans[-1].since if spans else time.time())
        self._drawing.put_up()

    def tell(self, event: Event) -> None:
        """Pass an event on, whose line comes above the picture."""
        if isinstance(event, Retried):
            with self._guard:
                self._trouble = f"again {printable(event.about)}: {printable(event.reason)}"
                self._trouble_until = time.monotonic() + event.wait_seconds + _TROUBLE_SECONDS
        self._drawing.put_away()
        self._tell(event)
        self._drawing.put_up()

    def put_away(self) -> None:
        """Clear it; the next change brings it back."""
        self._drawing.put_away()

    def _lines(self, options: ConsoleOptions) -> list[Text]:
        with self._guard:
            rows = list(self._rows.values())
            trouble = self._trouble if time.monotonic() < self._trouble_until else ""
        width = options.max_width - len("^C")  # which the terminal adds by itself
        if len(rows) == 1:
            lines = [plain_line(shortened(run_line(rows[0], time.time()), width, front=0.8))]
        else:
            lines = table_lines(rows, width, options.size.height - bool(trouble), time.time())
        return [*lines, plain_line(shortened(trouble, width, front=1.0), "yellow")] if trouble else lines


def run_line(row: Row, now: float) -> str:
    """One run in one line: its state, for how long, and the scheduler's reason. The id comes last, it is known already."""
    run = row.run
    lasting = "" if run.state.ended else f" for {time_words(max(0.0, now - row.since))}"
    about = f" ({printable(row.about)})" if row.about else ""
    return f"{run.state} at {run.site}{lasting}{about}  {run.id}"
