"""`hibali push`."""

from __future__ import annotations

from typing import Any

import click

from hibali_cli.command import command as as_command
from hibali_cli.following import add_following_options, follow, take_following
from hibali_cli.moving import add_moving_options, add_packing_options, move
from hibali_cli.options import Common


@as_command(
    "push",
    resumes=True,
    examples=[
        ("hibali push data juwels:@scratch/data", "Make the folder there hold what the folder here holds."),
        ("hibali push -n --delete data juwels:@scratch/data", "See what would be sent and deleted."),
        ("hibali push scan.nii.gz bucket:raw/", "Put one file into a place."),
        (
            "hibali push --pack study juwels:@archive/study",
            "Thousands of small files as a few tar files; pull sees the files.",
        ),
        (
            "hibali push --follow --append '*.log' --until run7/FINISHED run7 juwels:@scratch/run7",
            "Send what a simulation writes while it writes it.",
        ),
    ],
)
@click.argument("local")
@click.argument("target", metavar="SITE:PATH")
@add_moving_options
@add_packing_options
@add_following_options
def command(common: Common, local: str, target: str, **options: Any) -> int | None:
    """Send files to a site; nothing is deleted without --delete.

    The contents of a folder go into PATH; a file goes to exactly that name, or into PATH when it ends in a
    slash. What is there already is not sent again. Every file is hashed at both ends before it gets its name.
    """
    following = take_following(options)
    if following is None:
        return move(common, "push", local, target, options)
    return follow(common, local, target, following, options)
