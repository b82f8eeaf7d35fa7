"""Open the sites of runs, update and follow runs there, and print their logs."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rich.console import ConsoleOptions
from rich.text import Text

from hibali.amounts import format_duration
from hibali.config.model import Site
from hibali.config.settings import require_built_for_runs
from hibali.errors import HibaliError, TryLaterError
from hibali.events import Event, Listener, Retried
from hibali.retry import pause
from hibali.text import path_fields, printable
from hibali_cli import output
from hibali_cli.display import Drawing, plain_line, shortened
from hibali_cli.handlers.runs import Row, row_of, table_lines
from hibali_cli.interruption import hint_if_interrupted
from hibali_cli.options import Common
from hibali_cli.output import flush_results, is_terminal, json_line, write_message, write_message_raw
from runs.model import Run, ignore_run
from runs.monitor import Watching, note_usage, wait_for_end
from runs.poll import update
from runs.queue_limits import can_submit_more, submit_more
from runs.rate_limits import open_limited_host
from runs.schedulers.base import load_scheduler
from runs.schedules.notices import Target, read_target, send_run_notice
from runs.status import run_timeline
from runs.store import RunStore
from transfers.remote.host import RemoteHost

if TYPE_CHECKING:
    from runs.logs import Stream


POLL_SECONDS = 0.2  # seconds between two reads of the ledger


def run_site(common: Common, name: str) -> Site:
    """Return the site of a run, if runs are possible there; raises `UsageError`."""
    site = common.settings().site(name)
    require_built_for_runs(site)
    return site


def opener(site: Site, on_event: Listener) -> Callable[[], RemoteHost]:
    """Return a function that connects to the machine at a site."""
    return lambda: open_limited_host(site, on_event)


def wait_for_runs(
    common: Common,
    run_store: RunStore,
    runs: list[Run],
    on_event: Listener,
    *,
    changed: Callable[[Run], None] = ignore_run,
) -> list[Run]:
    """Follow runs at all sites until they have ended; return them as they are then. `changed` is called with each change."""
    parts = by_site(common, runs)
    with following(common, run_store, runs, on_event) as shown:

        def on_change(run: Run) -> None:
            shown.changed(run)
            changed(run)

        if len(parts) == 1:
            _follow(
                common, run_store, parts[0], opener(parts[0].site, shown.on_event), shown.on_event, on_change
            )
        elif parts:
            watching = follow_all(common, run_store, runs, parts, shown.on_event, on_change)
            while not watching.is_over:
                pause(POLL_SECONDS)
            for problem in watching.problems:
                raise problem
    ended = [run_store.load(run.id) for run in runs]
    for run in ended:
        changed(run)
    return ended


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
    openers = [_opened_first(opener(part.site, on_event)) for part in parts]
    follow = [
        partial(_follow, common, run_store, part, open_host, on_event, changed)
        for part, open_host in zip(parts, openers, strict=True)
    ]
    return Watching(run_store, [run.id for run in runs], follow)


def _follow(
    common: Common,
    run_store: RunStore,
    part: AtSite,
    open_host: Callable[[], RemoteHost],
    on_event: Listener,
    changed: Callable[[Run], None],
) -> None:
    def on_change(run: Run) -> None:
        common.output.detail(f"{run.id} {run.state} {run.status.native}".rstrip())
        changed(run)

    wait_for_end(
        open_host,
        load_scheduler(part.scheduler),
        run_store,
        part.run_ids,
        limits=part.site.limits,
        on_event=on_event,
        changed=on_change,
    )


def _opened_first(open_site: Callable[[], RemoteHost]) -> Callable[[], RemoteHost]:
    """Connect now for the first call; a site that is unreachable now is tried again by the caller."""
    first = []
    with contextlib.suppress(TryLaterError):
        first.append(open_site())
    return lambda: first.pop() if first else open_site()


def fetch_usage(common: Common, run_store: RunStore, run: Run, on_event: Listener) -> Run:
    """Record what accounting says of a run that ended, unless that is known; return the run as it is then."""
    scheduler = load_scheduler(run.placement.scheduler)
    if (
        not run.state.final
        or run.results.accounted
        or not scheduler.accounting_argv((run.job,), "", run.created[:10])
    ):
        return run
    with contextlib.suppress(HibaliError):
        host = opener(run_site(common, run.site), on_event)()
        try:
            note_usage(host, scheduler, run_store, [run])
        finally:
            host.close()
    return run_store.load(run.id)


def update_runs(
    common: Common, run_store: RunStore, runs: list[Run], on_event: Listener, *, submit_next: bool = False
) -> list[Run]:
    """Query each site once; a run whose site does not answer keeps its recorded state, with a warning.

    With `submit_next` a pilot whose allocation has ended gets the next one.
    """
    fresh = {run.id: run for run in runs}
    active = [run for run in runs if run.job and not run.state.final]
    for name, scheduler in sorted({(run.site, run.placement.scheduler) for run in active}):
        group = [run for run in active if (run.site, run.placement.scheduler) == (name, scheduler)]
        try:
            host = opener(run_site(common, name), on_event)()
            try:
                fresh |= {run.id: run for run in update(host, load_scheduler(scheduler), run_store, group)}
                limits = run_site(common, name).limits
                for run in [fresh[each.id] for each in group if submit_next]:
                    if run.sweep is not None and run.sweep.pilot is not None and can_submit_more(run):
                        fresh[run.id] = submit_more(
                            host, load_scheduler(scheduler), run_store, run, limits, on_event
                        )
            finally:
                host.close()
        except HibaliError as problem:
            common.output.warn(f"{name} was not asked: {problem.message}")
    return [fresh[run.id] for run in runs]


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
                    f"the end of {run.id} could not be notified: {subject}{problem.message}"
                )


_A_SECOND = 1
_MOST_NAMED = 5
_TROUBLE_SECONDS = 5.0  # how long a failed poll is shown beyond the pause after it


class Following(NamedTuple):
    """Where events go while runs are followed, and the function to call with each change of a run."""

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
        shown = _RunDisplay(run_store, on_event)
        with output.after(shown.clear):
            try:
                for run_id in ids:
                    shown.on_change(run_store.load(run_id))
                yield Following(shown.on_event, shown.on_change)
            finally:
                shown.clear()


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
        return f"The run is not submitted yet: the queue has no room. To submit it when there is some: hibali runs wait {named}"
    cancel = f"; to end it: hibali runs cancel {named}"
    return f"The run continues at {run.site}. To follow it: hibali runs wait {named}{cancel}"


class _RunDisplay:
    """The display: a line for one run, a table for several; may be used by any thread."""

    def __init__(self, run_store: RunStore, on_event: Listener) -> None:
        self._run_store = run_store
        self._on_event = on_event
        self._rows: dict[str, Row] = {}
        self._guard = threading.Lock()
        self._trouble = ""
        self._trouble_until = 0.0
        self._drawing = Drawing(self._lines, _A_SECOND)

    def on_change(self, run: Run) -> None:
        """Show the new state of a run."""
        spans = run_timeline(run, self._run_store.records(run.id))
        with self._guard:
            self._rows[run.id] = row_of(run, spans[-1].since if spans else time.time())
        self._drawing.show()

    def on_event(self, event: Event) -> None:
        """Pass an event on; its line appears above the display."""
        if isinstance(event, Retried):
            with self._guard:
                self._trouble = f"again {printable(event.subject)}: {printable(event.reason)}"
                self._trouble_until = time.monotonic() + event.wait_seconds + _TROUBLE_SECONDS
        self._drawing.clear()
        self._on_event(event)
        self._drawing.show()

    def clear(self) -> None:
        """Clear it; the next change brings it back."""
        self._drawing.clear()

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
    """Format one run: state, duration, the scheduler's reason, and last the id, which is known already."""
    run = row.run
    lasting = "" if run.state.ended else f" for {format_duration(max(0.0, now - row.since))}"
    subject = f" ({printable(row.subject)})" if row.subject else ""
    return f"{run.state} at {run.site}{lasting}{subject}  {run.id}"


_LONGEST_LETTER = 4  # bytes of UTF-8


class LogLines:
    """The streams of one run, printed as they arrive; with `apart`, its stderr goes to hibali's stderr."""

    def __init__(self, common: Common, run_id: str, *, apart: bool) -> None:
        self._common = common
        self._run_id = run_id
        self._apart = apart
        self._held: dict[Stream, bytes] = {}  # incomplete bytes, held back until more arrive
        self._unfinished: Stream | None = None  # the stream whose unfinished line is on the terminal

    def show(self, stream: Stream, piece: bytes) -> None:
        """Print one more piece at once. Raises `IncompleteError` if stdout fails."""
        aside = self._is_aside(stream)
        if self._common.json:
            fields = {"id": self._run_id, "stream": stream, **path_fields(piece, "text")}
            self._common.output.record("log", fields, flush=True)
        elif is_terminal(sys.stderr if aside else sys.stdout):
            self._show_safely(stream, self._held.pop(stream, b"") + piece)
        elif aside:
            write_message_raw(piece)
        else:
            self._common.output.raw(piece)
            flush_results()

    def end(self) -> None:
        """Print what is held back, and end the last line."""
        for stream, rest in list(self._held.items()):
            if half := rest.rstrip(b"\r"):
                self._write(stream, printable(half))
        self._held.clear()
        self._end_line()

    def _show_safely(self, stream: Stream, content: bytes) -> None:
        *lines, last = content.splitlines(keepends=True)
        if last.endswith(b"\n"):
            lines, last = [*lines, last], b""
        for line in lines:
            self._write(stream, printable(line.rstrip(b"\r\n")))
            self._end_line()
        whole = _without_half_letter(last.rstrip(b"\r"))  # the other half of a line end may follow
        self._held[stream] = last[len(whole) :]
        if whole:
            self._write(stream, printable(whole))

    def _write(self, stream: Stream, text: str) -> None:
        if self._unfinished is not None and self._unfinished != stream:
            self._end_line()
        self._put(stream, text)
        self._unfinished = stream

    def _end_line(self) -> None:
        if self._unfinished is not None:
            self._put(self._unfinished, "\n")
            self._unfinished = None

    def _put(self, stream: Stream, text: str) -> None:
        if self._is_aside(stream):
            write_message(text, end="")
        else:
            self._common.output.text(text)
            flush_results()

    def _is_aside(self, stream: Stream) -> bool:
        return self._apart and stream == "stderr"


def _without_half_letter(content: bytes) -> bytes:
    """Return the content without an incomplete UTF-8 character at its end."""
    for length in range(1, min(_LONGEST_LETTER, len(content) + 1)):
        first = content[-length]
        if first & 0xC0 == 0x80:
            continue
        wanted = 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2 if first >= 0xC0 else 1
        return content[:-length] if length < wanted else content
    return content
