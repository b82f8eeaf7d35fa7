"""Events shown as they come: a calm display on a terminal, lines elsewhere, JSON lines with `--json`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from hibali.events import (
    Adjusted,
    Carried,
    Deleted,
    Event,
    Failed,
    Hashing,
    Linked,
    Listener,
    Moved,
    Noted,
    Planned,
    Retried,
)
from hibali.text import printable
from hibali_cli.options import Common
from hibali_cli.output import coloured, write_aside
from hibali_cli.records import event_fields


class Display(Protocol):
    """What a terminal shows of an operation under way."""

    def show(self, event: Event) -> None:
        """Take an event into the picture."""

    def line(self, text: str) -> None:
        """Print a safe line above the picture."""


@contextmanager
def listening(common: Common, title: str) -> Iterator[Listener]:
    """A listener for the events of one operation, safe to call from any thread.

    Failures are always told, notes unless `--quiet`, everything with `--verbose`. With `--json` failures
    and notes, with `--verbose` all that is done, are JSON lines on stdout. On a terminal a bar runs on stderr
    unless `--no-progress` or `--quiet`.
    """
    guard = threading.Lock()
    with _display(common, title) as display:

        def listen(event: Event) -> None:
            with guard:
                display.show(event)
                if common.json:
                    _tell_program(common, event)
                text = _words(common, event)
                if text is not None:
                    display.line(text)

        yield listen


class _Lines:
    """No picture: lines alone, on stderr."""

    def show(self, event: Event) -> None:
        """Nothing moves here."""
        del event

    def line(self, text: str) -> None:
        """Print it."""
        write_aside(text)


def _display(common: Common, title: str) -> AbstractContextManager[Display]:
    if common.progress and coloured(sys.stderr):
        from hibali_cli.progress_bar import progress_bar

        return progress_bar(title)
    return nullcontext(_Lines())


def _words(common: Common, event: Event) -> str | None:
    """The line that people see of an event; None for one they did not ask for."""
    if isinstance(event, Failed):
        return f"failed   {printable(event.path)}: {printable(event.message)}"
    if common.output.quiet:
        return None
    if isinstance(event, Noted):
        return f"note     {printable(event.message)}"
    return _details(event) if common.output.verbose else None


def _details(event: Event) -> str | None:
    match event:
        case Moved():
            return f"moved    {printable(event.path)}"
        case Adjusted():
            return f"adjusted {printable(event.path)}"
        case Linked():
            return f"linked   {printable(event.path)}"
        case Deleted():
            return f"deleted  {printable(event.path)}"
        case Retried():
            reason = printable(event.reason)
            return f"again    {printable(event.about)} in {event.wait_seconds:.1f} s: {reason}"
        case Hashing():
            return f"hashing  {event.files} files, {event.bytes} bytes"
        case Planned():
            return (
                f"plan     {event.files_to_move} of {event.files} files, {event.bytes_to_move} of {event.bytes}"
                f" bytes to move, {event.files_kept} kept, {event.files_to_delete} to delete"
            )
        case _:
            return None


def _tell_program(common: Common, event: Event) -> None:
    told = isinstance(event, Failed | Noted) or (common.output.verbose and not isinstance(event, Carried))
    if told:
        common.output.record(type(event).__name__.lower(), event_fields(event), flush=True)
