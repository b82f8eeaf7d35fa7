"""`hibali runs cancel`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command("cancel", examples=[("hibali runs cancel 20260102-030405-0a1b2c3d", "End a run.")])
@click.argument("run_id", metavar="ID")
def command(common: Common, run_id: str) -> int | None:
    """End a run; one that has ended stays as it is.

    A run that was not submitted yet never will be, one that is being launched ends before it is. Killed half-way, the same line goes on.
    """
    from hibali_cli.progress import listening
    from hibali_cli.run_record import show_run, state_text
    from hibali_cli.run_site import opener, run_site
    from runs.cancel import cancel_run
    from runs.schedulers.base import load_scheduler
    from runs.store import Book

    book = Book()
    run = book.load(run_id)
    if not run.state.final:
        with listening(common, f"cancel {run.id}") as tell:
            open_far = opener(run_site(common, run.site), tell)
            run = cancel_run(open_far, load_scheduler(run.scheduler), book, run, tell)
    if common.json:
        show_run(common, run)
    else:
        common.output.say(f"{run.id} {state_text(run)}")
    return None
