"""What `--notify` adds to a command that waits for runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from hibali.errors import HibaliError
from hibali_cli.options import Common
from hibali_cli.output import json_line

if TYPE_CHECKING:
    from runs.model import Run
    from runs.schedules.notices import Target

notify_option = click.option(
    "--notify",
    metavar="COMMAND|URL",
    help="At the end of each run, run COMMAND ID STATE, or POST to URL: both get the run as JSON.",
)


@contextmanager
def notifying(common: Common, text: str | None) -> Iterator[Callable[[Run], None]]:
    """Call it with a run as often as that changes: its end is told once, in the background, and waited for at the end.

    What cannot be told is a warning: it changes nothing about the run. Raises `UsageError` at once for what can never be told.
    """
    from runs.model import ignore_run

    if text is None:
        yield ignore_run
        return
    from runs.schedules.notices import read_target

    notices = _Notices(common, read_target(text))
    try:
        yield notices.take
    except HibaliError:
        notices.finish()
        raise
    notices.finish()


class _Notices:
    """One after the other, in a thread of their own: whoever is told may take long."""

    def __init__(self, common: Common, target: Target) -> None:
        self._common = common
        self._target = target
        self._told: set[str] = set()
        self._queue: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
        self._thread.start()

    def take(self, run: Run) -> None:
        """May be called from any thread."""
        if run.state.ended and run.id not in self._told:
            self._told.add(run.id)
            self._queue.put(run)

    def finish(self) -> None:
        """Return when all were told, or could not be."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        from runs.schedules.notices import give_run_notice

        while (run := self._queue.get()) is not None:
            record = json_line({"schema": 1, "kind": "run", **run.to_whole_record()})
            try:
                give_run_notice(self._target, run.id, run.state, record.encode("ascii") + b"\n")
            except HibaliError as problem:
                about = f"{problem.about}: " if problem.about else ""
                self._common.output.warn(f"not notified of the end of {run.id}: {about}{problem.message}")
