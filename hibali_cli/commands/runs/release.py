"""`hibali runs release`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "release",
    examples=[("hibali runs release 20260102-030405-0a1b2c3d", "Let a run go that was begun with --hold.")],
)
@click.argument("run_id", metavar="ID")
def command(common: Common, run_id: str) -> int | None:
    """Let go a run that was begun with `run --hold`.

    The same line again changes nothing. A run that has ended is exit 8.
    """
    from hibali_cli.progress import listening
    from hibali_cli.run_record import show_run
    from hibali_cli.run_site import opener, run_site
    from runs.cancel import check_releasable, release_run
    from runs.schedulers.base import load_scheduler
    from runs.store import Book

    book = Book()
    run = book.load(run_id)
    check_releasable(run)
    with listening(common, f"release {run.id}") as tell:
        far = opener(run_site(common, run.site), tell)()
        try:
            run = release_run(far, load_scheduler(run.scheduler), book, run)
        finally:
            far.close()
    if common.json:
        show_run(common, run)
    else:
        common.output.say(f"{run.id} {run.state}")
    return None
