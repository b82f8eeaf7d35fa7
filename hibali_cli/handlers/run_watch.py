"""Watch runs: a table on a terminal, a line per change elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import ConsoleOptions
from rich.text import Text

from hibali.events import Event, Listener, Retried
from hibali.ledger import now
from hibali.retry import pause
from hibali.text import printable
from hibali_cli import output
from hibali_cli.display import Drawing, plain_line, shortened
from hibali_cli.handlers.run_sites import POLL_SECONDS, by_site, continues, follow_all
from hibali_cli.handlers.runs import Row, row_of, table_lines
from hibali_cli.interruption import hint_if_interrupted
from hibali_cli.options import Common
from hibali_cli.progress import EventPrinter, listening
from hibali_cli.tally import Tally
from runs.model import Run
from runs.status import run_timeline
from runs.store import RunStore

_A_SECOND = 1  # runs take minutes; faster updates are not needed
_TROUBLE_SECONDS = 5.0  # seconds that a failed poll is shown beyond the pause after it


class RunDisplay(Protocol):
    """A display of changes."""

    on_event: Listener

    def update(self, row: Row) -> None:
        """Show the new state of a run."""

    def redraw(self) -> None:
        """Draw again, if something else was written meanwhile."""

    def end(self) -> None:
        """End the display."""


def watch_runs(
    common: Common, run_store: RunStore, runs: list[Run], changed: Callable[[Run], None]
) -> list[Run]:
    """Show the runs until they end, and return their final states; `changed` is called with each change.

    Raises the error of a site that cannot be polled, once the runs of the others ended.
    """
    rows: dict[str, Row] = {}
    ids = [run.id for run in runs]
    with hint_if_interrupted(lambda: continues(run_store, ids)), _shown(common) as shown:
        watching = follow_all(common, run_store, runs, by_site(common, runs), shown.on_event)
        while True:
            is_over = watching.is_over  # before the last poll
            for run in watching.changed():
                before = rows.get(run.id)
                rows[run.id] = row_of(run, _since(run_store, run))
                if before is None or before.run != run:
                    shown.update(rows[run.id])
                    changed(run)
            if is_over:
                break
            shown.redraw()
            pause(POLL_SECONDS)
        shown.end()
    for problem in watching.problems:
        raise problem
    return [rows[run.id].run for run in runs]


def _since(run_store: RunStore, run: Run) -> float:
    spans = run_timeline(run, run_store.records(run.id))
    return spans[-1].since if spans else time.time()


@contextmanager
def _shown(common: Common) -> Iterator[RunDisplay]:
    drawn = (
        common.progress
        and not common.json
        and output.can_be_drawn_on(sys.stderr)
        and output.is_terminal(sys.stdout)
    )
    if not drawn:
        with listening(common, "watch") as on_event:
            yield _Changes(common, on_event)
        return
    table = _Table(common)
    with output.after(table.clear):
        try:
            yield table
        finally:
            table.clear()


class _Changes:
    """A display as lines: one for each change, on stdout."""

    def __init__(self, common: Common, on_event: Listener) -> None:
        self._common = common
        self.on_event = on_event

    def update(self, row: Row) -> None:
        """See Shown."""
        run = row.run
        if self._common.json:
            self._common.output.record("run", run.to_record(), flush=True)
            return
        self._common.output.line(f"{now()[:19]}Z {run.id} {run.state:<9} {row.subject}".rstrip())
        output.flush_results()

    def redraw(self) -> None:
        """See Shown."""

    def end(self) -> None:
        """See Shown."""


class _Table:
    """A display as a table at the bottom of the terminal, which remains as the result."""

    def __init__(self, common: Common) -> None:
        self._common = common
        self._rows: dict[str, Row] = {}
        self._guard = threading.Lock()
        self._trouble = ""
        self._trouble_until = 0.0
        self._drawing = Drawing(self._lines, _A_SECOND)
        self.on_event: Listener = EventPrinter(common, self, Tally(), None)

    def update(self, row: Row) -> None:
        """See Shown."""
        with self._guard:
            self._rows[row.run.id] = row
        self._drawing.show()

    def redraw(self) -> None:
        """See Shown."""
        if self._rows:
            self._drawing.show()

    def end(self) -> None:
        """See Shown."""
        self.clear()
        headings = ["run", "state", "pipeline", "site", "name", "remark"]
        rows = [
            (
                row.run.id,
                row.run.state,
                row.run.spec.pipeline,
                row.run.site,
                row.run.spec.name or None,
                row.subject or None,
            )
            for row in self._rows.values()
        ]
        if rows:
            self._common.output.table(headings, rows)

    def show(self, event: Event) -> None:
        """Show an event; only retries are shown."""
        if isinstance(event, Retried):
            with self._guard:
                self._trouble = f"retrying {printable(event.subject)}: {printable(event.reason)}"
                self._trouble_until = time.monotonic() + event.wait_seconds + _TROUBLE_SECONDS

    def line(self, text: str) -> None:
        """Print a safe line above the table."""
        self._drawing.line(text)

    def clear(self) -> None:
        """Clear it; the next change draws it again."""
        self._drawing.clear()

    def _lines(self, options: ConsoleOptions) -> list[Text]:
        with self._guard:
            rows = list(self._rows.values())
            trouble = self._trouble if time.monotonic() < self._trouble_until else ""
        width = options.max_width - len("^C")  # added by the terminal itself
        lines = table_lines(rows, width, options.size.height - bool(trouble), time.time())
        return [*lines, plain_line(shortened(trouble, width, front=1.0), "yellow")] if trouble else lines
