"""`hibali mkdir`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "mkdir",
    examples=[("hibali mkdir juwels:@scratch/run7/input", "Make a folder, and those above it.")],
)
@click.argument("location", metavar="SITE:PATH")
def command(common: Common, location: str) -> int | None:
    """Make a folder and those above it; one that is there already is left as it is.

    An object store has no folders: nothing is made there, that is said, and the exit is 0.
    """
    from hibali.locations import read_target
    from hibali_cli.looking import make_folder

    return make_folder(common, read_target(location, common.settings()))
