"""`hibali pull`."""

from __future__ import annotations

from typing import Any

import click

from hibali_cli.command import command as as_command
from hibali_cli.moving import add_moving_options, move
from hibali_cli.options import Common


@as_command(
    "pull",
    resumes=True,
    examples=[
        ("hibali pull juwels:@scratch/results results", "Fetch a folder's contents."),
        ("hibali pull bucket:raw/scan.nii.gz ./", "Fetch one file into the current folder."),
    ],
)
@click.argument("source", metavar="SITE:PATH")
@click.argument("local")
@add_moving_options
def command(common: Common, source: str, local: str, **options: Any) -> int | None:
    """Fetch files from a site; nothing is deleted without --delete.

    The contents of a folder go into LOCAL; a file goes to exactly that name, or into LOCAL when it ends in a
    slash. What is here already is not fetched again. Every file is hashed at both ends before it gets its name.
    """
    return move(common, "pull", source, local, options)
