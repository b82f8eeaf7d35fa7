"""`hibali runs wait`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.notifying import notify_option
from hibali_cli.options import Common


@as_command(
    "wait",
    examples=[
        (
            "hibali runs wait 20260102-030405-0a1b2c3d",
            "Wait for the end; exit 7 when the tool failed, 9 when a required output is missing.",
        ),
        ("hibali runs wait ID --max-time 10m", "Wait at most ten minutes, then exit 5."),
    ],
)
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@notify_option
def command(common: Common, run_ids: tuple[str, ...], *, notify: str | None) -> int | None:
    """Wait until runs have ended, and tell how."""
    from hibali_cli.notifying import notifying
    from hibali_cli.progress import listening
    from hibali_cli.run_record import report_ends
    from hibali_cli.run_site import wait_for_runs
    from runs.store import Book

    book = Book()
    runs = [book.load(run_id) for run_id in dict.fromkeys(run_ids)]
    with listening(common, "waiting") as tell, notifying(common, notify) as changed:
        runs = wait_for_runs(common, book, runs, tell, changed=changed)
    report_ends(common, book, runs)
    return None
