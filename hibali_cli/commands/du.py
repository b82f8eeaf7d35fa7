"""`hibali du`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "du",
    examples=[
        ("hibali du juwels:@scratch", "How many files and bytes a tree has."),
        ("hibali du --depth 1 bucket:raw", "The same of each of its folders, too."),
    ],
)
@click.argument("location", metavar="SITE:PATH")
@click.option(
    "-d",
    "--depth",
    type=click.IntRange(0, 1000),
    default=0,
    metavar="N",
    help="Show the folders so many levels down, too.",
)
def command(common: Common, location: str, *, depth: int) -> int | None:
    """Count the files and bytes of a tree, as a transfer of it would.

    Bytes are the sizes of files: what a transfer of them carries, not what they take on a disk. A folder comes behind
    those in it, the whole place last.
    """
    from hibali.locations import read_location
    from hibali_cli.looking import show_usage

    return show_usage(common, read_location(location, common.settings()), depth)
