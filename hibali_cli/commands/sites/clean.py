"""`hibali sites clean`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common, duration_of


@as_command(
    "clean",
    resumes=True,
    examples=[
        ("hibali sites clean bucket --dry-run", "See which uploads were begun and never completed."),
        ("hibali sites clean bucket --older-than 1d", "End those that nobody went on with for a day."),
    ],
)
@click.argument("name", metavar="SITE")
@click.option(
    "--older-than",
    default="7d",
    show_default=True,
    callback=duration_of,
    metavar="DURATION",
    help="Leave younger ones alone.",
)
@click.option("--all", "everybody", is_flag=True, help="End those that others began, too.")
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be ended.")
def command(common: Common, name: str, *, older_than: float, everybody: bool, dry_run: bool) -> int | None:
    """End uploads into an object store that were interrupted and that nobody goes on with.

    The server keeps and bills their parts until they are ended. A push that is typed again goes on with what
    is younger. Below the site's prefix, and only what this machine began, unless --all says otherwise.
    """
    from hibali_cli.leftovers import clean_and_tell

    site = common.settings().site(name)
    return clean_and_tell(common, site, older_than=older_than, everybody=everybody, dry=dry_run)
