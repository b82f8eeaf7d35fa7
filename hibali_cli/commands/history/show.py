"""`hibali history show`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "show",
    examples=[
        (
            "hibali history show 20260102-030405-0a1b2c3d",
            "What it did, how it ended, and what to do about it.",
        )
    ],
)
@click.argument("identifier", metavar="ID")
def command(common: Common, identifier: str) -> int | None:
    """Tell all that is known of one operation: where it moved what, what is proven, what failed and why."""
    from hibali_cli.telling_history import show_operation

    return show_operation(common, identifier)
