"""`hibali sync`."""

from __future__ import annotations

from typing import Any

import click

from hibali_cli.command import command as as_command
from hibali_cli.moving import add_moving_options, add_packing_options, move
from hibali_cli.options import Common


@as_command(
    "sync",
    resumes=True,
    examples=[
        ("hibali sync juwels:@scratch/data bucket:data", "From one site to another, through this machine."),
        ("hibali sync --direct juwels:data jureca:data", "From one ssh site straight to another."),
        (
            "hibali sync --delete --max-delete 100 data juwels:data",
            "Make the target the same, within a limit.",
        ),
    ],
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--direct",
    is_flag=True,
    help="From one ssh site straight to another, by the first one's own ssh.",
)
@add_moving_options
@add_packing_options
def command(common: Common, source: str, target: str, **options: Any) -> int | None:
    """Make TO hold what FROM holds; nothing is deleted without --delete.

    Either side may be a local path or SITE:PATH. Bytes between two sites pass through this machine and are not
    kept here, but for --direct.
    """
    return move(common, "sync", source, target, options)
