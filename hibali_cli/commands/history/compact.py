"""`hibali history compact`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.selecting import take_time


@as_command(
    "compact",
    resumes=True,
    examples=[
        ("hibali history compact --older-than 180d -n", "See how much room it would make."),
        ("hibali history compact --older-than 180d", "Shorten what is older than half a year."),
    ],
)
@click.option(
    "--older-than",
    "before",
    callback=take_time,
    required=True,
    metavar="DURATION|TIME",
    help="Only operations begun longer ago than DURATION (180d), or before TIME.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Say what would go, and change nothing.")
def command(common: Common, *, before: int, dry_run: bool) -> int | None:
    """Shorten old journals: details that newer operations made meaningless go, receipts stay.

    Of each file the newest line stays, whatever its age, and with it what `verify` and `history --path` go by. Nothing else
    ever does this: the ledger grows until it is asked to shrink.
    """
    from hibali_cli.telling_history import compact_history

    return compact_history(common, before / 1e9, dry_run=dry_run)
