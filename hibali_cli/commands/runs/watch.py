"""`hibali runs watch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hibali_cli.command import command as as_command
from hibali_cli.notifying import notify_option
from hibali_cli.options import Common

if TYPE_CHECKING:
    from runs.model import Run


@as_command(
    "watch",
    examples=[
        ("hibali runs watch", "Watch all runs that are under way, until they are over."),
        ("hibali runs watch ID --notify 'notify-send hibali'", "Be told of the end."),
        ("hibali runs watch --json >changes.jsonl", "Keep every change as a JSON line."),
    ],
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@notify_option
def command(common: Common, run_ids: tuple[str, ...], *, notify: str | None) -> int | None:
    """Watch runs until they are over: a table on a terminal, elsewhere a line for each change.

    It ends as `runs wait` does. To look is all it does: the same `run` line still continues a run whose end was only watched.
    """
    from hibali_cli.notifying import notifying
    from hibali_cli.run_record import raise_failure
    from hibali_cli.watching import watch_runs
    from runs.store import Book

    book = Book()
    if run_ids:
        runs = [book.load(run_id) for run_id in dict.fromkeys(run_ids)]
    else:
        runs = [run for run in book.all() if run.job and not run.state.ended]
    told: list[Run] = []
    with notifying(common, notify) as notice:

        def take(run: Run) -> None:
            told.append(run)
            notice(run)

        runs = watch_runs(common, book, runs, take)
    if not runs:
        common.output.say("No run is under way.")
    raise_failure(runs)
    if common.json:
        common.output.record("end", {"count": len(told), "exit": 0})
    return None
