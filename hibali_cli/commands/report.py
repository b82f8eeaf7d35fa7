"""`hibali report`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import OUTPUT_FILE, Common


@as_command(
    "report",
    examples=[
        ("hibali report", "See whether all is well."),
        ("hibali report -o report.html", "The same as one page, to be opened, printed or sent."),
        ("hibali report -o /var/www/hibali/", "Write index.html there, as a schedule may do each morning."),
    ],
)
@click.option(
    "-o", "--output", metavar="DIR|FILE", type=OUTPUT_FILE, help="Write one HTML page, whole or not at all."
)
@click.option(
    "--days",
    type=click.IntRange(2, 366),
    default=60,
    show_default=True,
    metavar="N",
    help="Draw so many days.",
)
def command(common: Common, *, output: str | None, days: int) -> int | None:
    """Say on one page whether all is well: schedules, what failed and what to do, what moved, what is not proven.

    All of it is read on this machine: no site is asked. The page fetches nothing and runs no script.
    """
    from hibali_cli.overview import show_report

    return show_report(common, output, days)
