"""`hibali ls`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "ls",
    examples=[
        ("hibali ls juwels:@scratch", "What a folder holds."),
        ("hibali ls -R --json bucket:raw", "Everything below, a JSON line each."),
    ],
)
@click.argument("location", metavar="SITE:PATH")
@click.option("-R", "--recursive", is_flag=True, help="List everything below, not only the folder itself.")
@click.option("-l", "--long", is_flag=True, help="Show size and modification time.")
def command(common: Common, location: str, *, recursive: bool, long: bool) -> int | None:
    """List what a place holds, in the order of the names' bytes."""
    from hibali.locations import read_location
    from hibali_cli.listing import list_place

    return list_place(common, read_location(location, common.settings()), recursive=recursive, long=long)
