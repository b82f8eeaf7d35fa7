"""`hibali runs show`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command("show", examples=[("hibali runs show 20260102-030405-0a1b2c3d", "See how far a run is.")])
@click.argument("run_id", metavar="ID")
def command(common: Common, run_id: str) -> int | None:
    """Show a run, after asking its site once where it has not ended."""
    from hibali_cli.progress import listening
    from hibali_cli.run_record import show_run
    from hibali_cli.run_site import update_runs
    from runs.store import Book

    book = Book()
    run = book.load(run_id)
    with listening(common, f"run {run.id}") as tell:
        [run] = update_runs(common, book, [run], tell, going_on=True)
    show_run(common, run)
    return None
