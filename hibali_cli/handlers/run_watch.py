"""Follow runs until they have ended: wait, watch, and notify."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from rich.console import ConsoleOptions
from rich.text import Text

from hibali.amounts import format_duration
from hibali.config.model import Site
from hibali.errors import HibaliError, TryLaterError
from hibali.events import Event, Listener, Retried
from hibali.ledger import now
from hibali.notices import Target, read_target, send_run_notice
from hibali.retry import pause
from hibali.text import printable
from hibali_cli import output
from hibali_cli.cells import id_cell
from hibali_cli.display import Drawing, plain_line, shortened
from hibali_cli.handlers.run_sites import run_site
from hibali_cli.handlers.runs import Row, report_ends, row_of, state_text, table_lines
from hibali_cli.interruption import hint_if_interrupted
from hibali_cli.options import Common
from hibali_cli.output import json_line
from hibali_cli.progress import EventPrinter, listening
from runs.model import Run, ignore_run
from runs.monitor import Watching, wait_for_end
from runs.run_index import UNFINISHED, RunFilter
from runs.site_session import SiteOpener, SiteSession
from runs.status import raise_failure, run_timeline
from runs.store import RunStore
from transfers.history.tally import Tally

_REDRAWS_PER_SECOND = 1  # draws per second: runs take minutes; faster updates are not needed
_TROUBLE_SECONDS = 5.0  # seconds that a failed poll is shown beyond the pause after it
_POLL_SECONDS = 0.2  # seconds between two reads of the ledger
_MOST_NAMED = 5


class AtSite(NamedTuple):
    """Runs of one site and scheduler, which are queried together."""

    site: Site
    scheduler: str
    run_ids: list[str]


def by_site(common: Common, runs: list[Run]) -> list[AtSite]:
    """Group the runs whose end is not known. Raises `UsageError` for a site that is not configured any more."""
    open_runs = [run for run in runs if not run.state.final]
    return [
        AtSite(run_site(common, name), scheduler, [run.id for run in open_runs if _place(run) == place])
        for place in sorted({_place(run) for run in open_runs})
        for name, scheduler in [place]
    ]


def _place(run: Run) -> tuple[str, str]:
    return run.site, run.placement.scheduler


def follow_all(
    common: Common,
    run_store: RunStore,
    runs: list[Run],
    parts: list[AtSite],
    on_event: Listener,
    changed: Callable[[Run], None] = ignore_run,
) -> Watching:
    """Follow all runs in background threads. Logins are made before that, one after the other, because they may prompt."""
    follow = []
    for part in parts:
        opener = SiteOpener(part.site, part.scheduler, run_store, on_event)
        session: SiteSession | None = None
        with contextlib.suppress(TryLaterError):  # the session is opened again later
            session = opener()
        follow.append(partial(_follow, common, opener, part.run_ids, changed, session))
    return Watching(run_store, [run.id for run in runs], follow)


def _follow(
    common: Common,
    opener: SiteOpener,
    run_ids: list[str],
    changed: Callable[[Run], None],
    session: SiteSession | None = None,
) -> None:
    def on_change(run: Run) -> None:
        state = f"{run.state} {run.status.native}" if run.sweep is None else state_text(run)
        common.output.detail(f"{run.id} {state}".rstrip())
        changed(run)

    wait_for_end(opener, run_ids, changed=on_change, session=session)


def wait_for_runs(
    common: Common,
    run_store: RunStore,
    runs: list[Run],
    on_event: Listener,
    *,
    changed: Callable[[Run], None] = ignore_run,
) -> list[Run]:
    """Follow runs at all sites until they have ended; return their final states. `changed` is called with each change."""
    parts = by_site(common, runs)
    with following(common, run_store, runs, on_event) as shown:

        def on_change(run: Run) -> None:
            shown.changed(run)
            changed(run)

        if len(parts) == 1:
            [part] = parts
            opener = SiteOpener(part.site, part.scheduler, run_store, shown.on_event)
            _follow(common, opener, part.run_ids, on_change)
        elif parts:
            watching = follow_all(common, run_store, runs, parts, shown.on_event, on_change)
            while not watching.is_over:
                pause(_POLL_SECONDS)
            for problem in watching.problems:
                raise problem
    ended = [run_store.load(run.id) for run in runs]
    for run in ended:
        changed(run)
    return ended


def wait_and_report(common: Common, run_ids: tuple[str, ...], *, notify: str | None) -> int | None:
    """Wait until runs have ended, and report how they ended."""
    run_store = RunStore()
    runs = [run_store.load(run_id) for run_id in dict.fromkeys(run_ids)]
    with listening(common, "waiting") as on_event, notifying(common, notify) as changed:
        runs = wait_for_runs(common, run_store, runs, on_event, changed=changed)
    report_ends(common, run_store, runs)
    return None


class Following(NamedTuple):
    """The listener for events while runs are followed, and the function to call with each change of a run."""

    on_event: Listener
    changed: Callable[[Run], None]


@contextmanager
def following(
    common: Common, run_store: RunStore, runs: Sequence[Run], on_event: Listener
) -> Iterator[Following]:
    """Show the runs on stderr while they are followed, if that is a terminal.

    After an interruption the hint says that they continue, and how to follow them.
    """
    ids = [run.id for run in runs if not run.state.final]
    drawn = (
        common.progress
        and ids
        and output.can_be_drawn_on(sys.stderr)
        and not (common.json and output.is_terminal(sys.stdout))
    )
    with hint_if_interrupted(lambda: continues(run_store, ids)):
        if not drawn:
            yield Following(on_event, ignore_run)
            return
        display = _LiveRuns(in_one_line=True)

        def on_change(run: Run) -> None:
            display.update(_row(run_store, run))

        def print_above(event: Event) -> None:
            display.show(event)
            display.clear()
            on_event(event)
            display.redraw()

        with output.after(display.clear):
            try:
                for run_id in ids:
                    on_change(run_store.load(run_id))
                yield Following(print_above, on_change)
            finally:
                display.clear()


def continues(run_store: RunStore, run_ids: Sequence[str]) -> str:
    """Return the hint for runs that are no longer followed."""
    runs = [run_store.load(each) for each in run_ids]
    left = [run for run in runs if not run.state.final]
    if not left:
        return ""
    named = " ".join(run.id for run in left) if len(left) <= _MOST_NAMED else "ID..."
    if len(left) > 1:
        return f"The runs continue. To follow them: hibali runs wait {named}"
    [run] = left
    if run.waits:
        return f"The run is not submitted yet: the queue is full. To submit it when a job has ended: hibali runs wait {named}"
    cancel = f"; to end it: hibali runs cancel {named}"
    return f"The run continues at {run.site}. To follow it: hibali runs wait {named}{cancel}"


class _LiveRuns:
    """Runs drawn on the terminal: as a table, or a single one as a line if `in_one_line`. May be used by any thread."""

    def __init__(self, *, in_one_line: bool = False) -> None:
        self._rows: dict[str, Row] = {}
        self._guard = threading.Lock()
        self._in_one_line = in_one_line
        self._trouble = ""
        self._trouble_until = 0.0
        self._drawing = Drawing(self._lines, _REDRAWS_PER_SECOND)

    def update(self, row: Row) -> None:
        """Show the new state of a run."""
        with self._guard:
            self._rows[row.run.id] = row
        self._drawing.show()

    def show(self, event: Event) -> None:
        """Show an event; only retries are shown."""
        if isinstance(event, Retried):
            with self._guard:
                self._trouble = f"retrying {printable(event.subject)}: {printable(event.reason)}"
                self._trouble_until = time.monotonic() + event.wait_seconds + _TROUBLE_SECONDS

    def redraw(self) -> None:
        """Draw again, if something else was written meanwhile."""
        if self._rows:
            self._drawing.show()

    def clear(self) -> None:
        """Clear it; the next change draws it again."""
        self._drawing.clear()

    def _lines(self, options: ConsoleOptions) -> list[Text]:
        with self._guard:
            rows = list(self._rows.values())
            trouble = self._trouble if time.monotonic() < self._trouble_until else ""
        width = options.max_width - len("^C")  # added by the terminal itself
        if self._in_one_line and len(rows) == 1:
            lines = [plain_line(shortened(run_line(rows[0], time.time()), width, front=0.8))]
        else:
            lines = table_lines(rows, width, options.size.height - bool(trouble), time.time())
        return [*lines, plain_line(shortened(trouble, width, front=1.0), "yellow")] if trouble else lines


def run_line(row: Row, now: float) -> str:
    """Format one run: state, duration, the scheduler's reason, and last the id, which is known already."""
    run = row.run
    lasting = "" if run.state.ended else f" for {format_duration(max(0.0, now - row.since))}"
    subject = f" ({printable(row.subject)})" if row.subject else ""
    return f"{run.state} at {run.site}{lasting}{subject}  {run.id}"


def _row(run_store: RunStore, run: Run) -> Row:
    spans = run_timeline(run, run_store.records(run.id))
    return row_of(run, spans[-1].since if spans else time.time())


def watch_and_print(common: Common, run_ids: tuple[str, ...], *, notify: str | None) -> int | None:
    """Show the changes of runs until they have ended."""
    run_store = RunStore()
    if run_ids:
        runs = [run_store.load(run_id) for run_id in dict.fromkeys(run_ids)]
    else:
        runs = run_store.find(RunFilter(states=UNFINISHED, has_job=True))
    ended_runs: list[Run] = []
    with notifying(common, notify) as notice:

        def on_change(run: Run) -> None:
            ended_runs.append(run)
            notice(run)

        runs = watch_runs(common, run_store, runs, on_change)
    if not runs:
        common.output.info("There are no unfinished runs.")
    raise_failure(runs)
    if common.json:
        common.output.record("end", {"count": len(ended_runs), "exit": 0})
    return None


def watch_runs(
    common: Common, run_store: RunStore, runs: list[Run], changed: Callable[[Run], None]
) -> list[Run]:
    """Show the runs until they end, and return their final states; `changed` is called with each change.

    Raises the error of a site that cannot be polled, once the runs of the others ended.
    """
    rows: dict[str, Row] = {}
    ids = [run.id for run in runs]
    with hint_if_interrupted(lambda: continues(run_store, ids)), _open_display(common) as display:
        watching = follow_all(common, run_store, runs, by_site(common, runs), display.on_event)
        while True:
            is_over = watching.is_over  # before the last poll
            for run in watching.changed():
                before = rows.get(run.id)
                rows[run.id] = _row(run_store, run)
                if before is None or before.run != run:
                    display.update(rows[run.id])
                    changed(run)
            if is_over:
                break
            display.redraw()
            pause(_POLL_SECONDS)
        display.end()
    for problem in watching.problems:
        raise problem
    return [rows[run.id].run for run in runs]


@contextmanager
def _open_display(common: Common) -> Iterator[_Changes | _Table]:
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
        """Print the new state of a run."""
        run = row.run
        if self._common.json:
            self._common.output.record("run", run.to_record(), flush=True)
            return
        self._common.output.line(f"{now()[:19]}Z {run.id} {run.state:<9} {row.subject}".rstrip())
        output.flush_results()

    def redraw(self) -> None:
        """Do nothing: lines remain."""

    def end(self) -> None:
        """Do nothing: lines remain."""


class _Table(_LiveRuns):
    """A display as a table at the bottom of the terminal, which remains as the result."""

    def __init__(self, common: Common) -> None:
        super().__init__()
        self._common = common
        self.on_event: Listener = EventPrinter(common, self, Tally(), None)

    def end(self) -> None:
        """Replace the drawing with a table on stdout."""
        self.clear()
        headings = ["run", "state", "pipeline", "site", "name", "remark"]
        rows = [
            (
                id_cell(row.run.id),
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

    def line(self, text: str) -> None:
        """Print a safe line above the table."""
        self._drawing.line(text)


@contextmanager
def notifying(common: Common, text: str | None) -> Iterator[Callable[[Run], None]]:
    """Yield a function to call with a run whenever it changes: its end is notified once, in the background.

    The context ends when all notifications were sent. One that fails is a warning. Raises `UsageError` at once for a target that is
    neither a command nor a URL.
    """
    if text is None:
        yield ignore_run
        return
    notices = _NotificationSender(common, read_target(text))
    try:
        yield notices.on_change
    except HibaliError:
        notices.finish()
        raise
    notices.finish()


class _NotificationSender:
    """Send notifications one after the other in a thread, because a receiver may be slow."""

    def __init__(self, common: Common, target: Target) -> None:
        self._common = common
        self._target = target
        self._notified: set[str] = set()
        self._queue: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
        self._thread.start()

    def on_change(self, run: Run) -> None:
        """Notify of the end of a run, if it has ended; may be called from any thread."""
        if run.state.ended and run.id not in self._notified:
            self._notified.add(run.id)
            self._queue.put(run)

    def finish(self) -> None:
        """Wait until all notifications were sent or failed."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (run := self._queue.get()) is not None:
            record = json_line({"schema": 1, "kind": "run", **run.to_whole_record()})
            try:
                send_run_notice(self._target, run.id, run.state, record.encode("ascii") + b"\n")
            except HibaliError as problem:
                subject = f"{problem.subject}: " if problem.subject else ""
                self._common.output.warn(
                    f"the notification of the end of {run.id} failed: {subject}{problem.message}"
                )
