"""Show events as they come: a display on a terminal, lines elsewhere, JSON lines with `--json`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from hibali.amounts import format_size
from hibali.events import (
    Adjusted,
    Carried,
    Carrying,
    Connected,
    Deleted,
    Ended,
    Event,
    Failed,
    Grown,
    Hashing,
    Linked,
    Listing,
    Moved,
    Noted,
    Packed,
    Planned,
    Recorded,
    Removed,
    Retried,
    Round,
    Unverified,
)
from hibali.text import counted, printable
from hibali_cli.options import Common
from hibali_cli.output import can_be_drawn_on, is_logged, is_terminal, log_message, write_message
from hibali_cli.records import event_fields
from transfers.history.tally import LISTING, WAITING, Tally

_LINE_SECONDS = 30.0
_RECORD_SECONDS = 10.0
_UNVERIFIED_NAMED = 100  # of possibly a whole archive


class Display(Protocol):
    """The display of a running operation on a terminal."""

    def show(self, event: Event) -> None:
        """Update the display with an event."""

    def line(self, text: str) -> None:
        """Print an escaped line above the display."""


class EventPrinter:
    """A listener for the events of one operation, safe to call from any thread; `tally` sums them up."""

    def __init__(
        self, common: Common, display: Display, tally: Tally, progress_lines: ProgressLines | None
    ) -> None:
        self.tally = tally
        self._common = common
        self._display = display
        self._pulse = progress_lines
        self._guard = threading.Lock()
        self._unverified = 0

    def __call__(self, event: Event) -> None:
        """Display and print an event, as the options say."""
        with self._guard:
            self._display.show(event)
            if self._common.json:
                _write_record(self._common, event)
            shown = _is_shown(self._common, event)
            text = _line_of(event) if shown or is_logged() else None
            if isinstance(event, Unverified):
                text = self._name_unverified(event)
            if text is not None:
                log_message(text)
                if shown:
                    self._display.line(text)
            if self._pulse is not None:
                self._pulse.update(self._display)

    def _name_unverified(self, event: Unverified) -> str | None:
        """Print the first unverified files for users; JSON has them all."""
        self._unverified += 1
        if self._unverified > _UNVERIFIED_NAMED + 1:
            return None
        if self._unverified > _UNVERIFIED_NAMED:
            return "unknown  more files; --json names all of them"
        return f"unknown  {printable(event.path)}: {printable(event.message)}"


@contextmanager
def listening(
    common: Common, title: str, *, records: bool = False, ends_at_plan: bool = False
) -> Iterator[EventPrinter]:
    """Show events as they come.

    Failures are always shown, notes unless `--quiet`, everything with `--verbose`. With `--json`, failures and notes (with
    `--verbose` all events) are JSON lines on stdout. Unless `--no-progress` or `--quiet`, progress is drawn on a terminal, and
    cleared when there is a plan if it `ends_at_plan`; elsewhere it is a line on stderr at intervals, or with `--json` on
    stdout, if `records` may be written there.
    """
    tally = Tally()
    with _display(common, title, tally, ends_at_plan=ends_at_plan) as display:
        drawn = not isinstance(display, _Lines)
        progress_lines = None
        if common.progress and not ends_at_plan and (records if common.json else not drawn):
            progress_lines = ProgressLines(common, tally)
        yield EventPrinter(common, display, tally, progress_lines)


class _Lines:
    """A display without drawing: only lines on stderr."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def show(self, event: Event) -> None:
        """Count an event."""
        self._tally.update(event, time.monotonic())

    def line(self, text: str) -> None:
        """Print it."""
        write_message(text)


class ProgressLines:
    """Progress for logs and programs: a line at intervals."""

    def __init__(self, common: Common, tally: Tally) -> None:
        self._common = common
        self._tally = tally
        self._seconds = _RECORD_SECONDS if common.json else _LINE_SECONDS
        self._last = time.monotonic()

    def update(self, display: Display) -> None:
        """Print progress if it is due; called at every event."""
        now, tally = time.monotonic(), self._tally
        if now - self._last < self._seconds or tally.phase in {WAITING, LISTING}:
            return
        self._last = now
        if self._common.json:
            self._common.output.record("progress", tally.to_record(now), flush=True)
        else:
            display.line(f"{tally.phase:<8} {', '.join(tally.facts(now))}")


def _display(
    common: Common, title: str, tally: Tally, *, ends_at_plan: bool
) -> AbstractContextManager[Display]:
    """Return a drawn display on a terminal, unless it would mix with JSON lines."""
    seen = can_be_drawn_on(sys.stderr) and not (common.json and is_terminal(sys.stdout))
    if common.progress and seen:
        from hibali_cli.progress_display import progress_display  # start-up: only on a terminal

        return progress_display(title, tally, ends_at_plan=ends_at_plan)
    return nullcontext(_Lines(tally))


def _is_shown(common: Common, event: Event) -> bool:
    """Return whether the line of an event is shown on stderr, not only in the log."""
    if isinstance(event, Failed | Unverified):
        return True
    return not common.output.quiet and (common.output.verbose or isinstance(event, Noted | Round))


def _line_of(event: Event) -> str | None:
    """Return the line of an event for users; None for one without."""
    if isinstance(event, Failed):
        return f"failed   {printable(event.path)}: {printable(event.message)}"
    if isinstance(event, Noted):
        return f"note     {printable(event.message)}"
    if isinstance(event, Round):
        failed = f", {event.files_failed} could not be sent so far" if event.files_failed else ""
        return (
            f"cycle    {event.number}: {counted(event.files_moved, 'file')} and {format_size(event.bytes_moved)} moved,"
            f" {event.files_waiting} not finished yet{failed}"
        )
    return _details(event)


def _details(event: Event) -> str | None:
    match event:
        case Moved() | Linked() if event.renamed_from:
            word = type(event).__name__.lower()
            return f"{word:<8} {printable(event.path)} (at the source: {printable(event.renamed_from)})"
        case Moved() | Adjusted() | Recorded() | Linked() | Deleted() | Removed():
            return f"{type(event).__name__.lower():<8} {printable(event.path)}"
        case Grown():
            return f"grown    {printable(event.path)}: {format_size(event.bytes_added)} more, {format_size(event.size)} in all"
        case Packed():
            return f"packed   {printable(event.path)}: {event.members} in {event.size} bytes"
        case Retried():
            reason = printable(event.reason)
            return f"retrying {printable(event.subject)} in {event.wait_seconds:.1f} s: {reason}"
        case Connected():
            return f"opened   {counted(event.lines, 'connection')} to {printable(event.subject)}, {counted(event.logins, 'login')}"
        case Hashing():
            return f"hashing  {counted(event.files, 'file')} ({format_size(event.bytes)})"
        case Planned():
            return (
                f"plan     {event.files_to_move} of {counted(event.files, 'file')} to move,"
                f" {format_size(event.bytes_to_move)} of {format_size(event.bytes)};"
                f" {event.files_kept} kept, {event.files_to_delete} to delete"
            )
        case _:
            return None


def _write_record(common: Common, event: Event) -> None:
    is_reported = isinstance(event, Failed | Noted | Round | Unverified) or (
        common.output.verbose and not isinstance(event, Carried | Carrying | Listing | Ended)
    )
    if is_reported:
        common.output.record(type(event).__name__.lower(), event_fields(event), flush=True)
