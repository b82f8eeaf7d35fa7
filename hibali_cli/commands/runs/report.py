"""`hibali runs report`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import OUTPUT_FILE, Common


@as_command(
    "report",
    examples=[
        ("hibali runs report -o runs.html", "Put all runs on one page."),
        ("hibali runs report 20260102-030405-0a1b2c3d -o run.html", "Only this one."),
    ],
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option(
    "-o",
    "--output",
    "output",
    required=True,
    metavar="FILE.html",
    type=OUTPUT_FILE,
    help="Write FILE.html, whole or not at all.",
)
@click.option("--update", is_flag=True, help="Ask each site with runs under way, once.")
def command(common: Common, run_ids: tuple[str, ...], *, output: str, update: bool) -> int | None:
    """Write runs as they were last heard of on one page: a timeline, what they used, were given and left.

    The page needs nothing else, runs no script and fetches nothing: it can be opened, printed and sent as it is.
    """
    import os
    import time
    from pathlib import Path

    from hibali.files import WholeFile
    from hibali.text import path_fields
    from hibali_cli.progress import listening
    from hibali_cli.run_site import update_runs
    from runs.reports.run_page import render, tell_of
    from runs.store import Book

    book = Book()
    runs = [book.load(run_id) for run_id in dict.fromkeys(run_ids)] if run_ids else book.all()
    if update:
        with listening(common, "report") as tell:
            runs = update_runs(common, book, runs, tell)
    page = render([tell_of(run, book) for run in sorted(runs, key=lambda run: run.id)], time.time())
    with WholeFile(Path(output)) as file:
        file.write(page)
        file.commit()
    if common.json:
        fields = {"format": "report", "runs": [run.id for run in runs], "bytes": len(page)}
        common.output.record("exported", {**path_fields(os.fsencode(output)), **fields})
    else:
        common.output.line(os.fsencode(output))
    return None
