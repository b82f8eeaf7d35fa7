"""`hibali push`."""

from __future__ import annotations

from typing import Any

import click

from hibali_cli.command import command as as_command
from hibali_cli.moving import add_moving_options, move
from hibali_cli.options import Common


@as_command(
    "push",
    examples=[
        ("hibali push data juwels:@scratch/data", "Make the folder there hold what the folder here holds."),
        ("hibali push -n --delete data juwels:@scratch/data", "See what would be sent and deleted."),
        ("hibali push scan.nii.gz bucket:raw/", "Put one file into a place."),
    ],
)
@click.argument("local")
@click.argument("target", metavar="SITE:PATH")
@add_moving_options
def command(common: Common, local: str, target: str, **options: Any) -> int | None:
    """Send files to a site; nothing is deleted without --delete.

    The contents of a folder go into PATH; a file goes to exactly that name, or into PATH when it ends in a
    slash. What is there already is not sent again. Every file is hashed at both ends before it gets its name.
    """
    return move(common, "push", local, target, options)
