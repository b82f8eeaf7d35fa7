"""`hibali history`: what was done."""

from __future__ import annotations

from typing import Any

import click

from hibali_cli.command import listing_group
from hibali_cli.options import Common
from hibali_cli.selecting import take_time

_RESULTS = ("done", "incomplete", "failed", "later", "refused", "interrupted", "under-way", "unfinished")


@listing_group(
    "history",
    package=__name__,
    examples=[
        ("hibali history", "See what was done, the latest last."),
        ("hibali history --site juwels --since 7d", "Only this site, and only the last week."),
        ("hibali history --result failed --result incomplete", "Only what went wrong."),
        (
            "hibali history --path juwels:@scratch/data/sub-01.nii",
            "When this file last moved, and with what proof.",
        ),
        ("hibali history show 20260102-030405-0a1b2c3d", "All that is known of one operation."),
    ],
)
@click.option("--site", "site_name", metavar="SITE", help="Only operations from or to SITE.")
@click.option("--schedule", metavar="NAME", help="Only operations of this schedule.")
@click.option(
    "--path", metavar="LOCATION", help="When this file or folder moved, or was verified, and with what proof."
)
@click.option(
    "--result",
    "results",
    type=click.Choice(_RESULTS),
    multiple=True,
    help="Only those that ended so; may be repeated.",
)
@click.option(
    "--since",
    callback=take_time,
    metavar="DURATION|TIME",
    help="Only those begun within DURATION (7d), or since TIME.",
)
@click.option(
    "--until",
    callback=take_time,
    metavar="DURATION|TIME",
    help="Only those begun before DURATION ago, or before TIME.",
)
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the latest N of them.")
def command(common: Common, **options: Any) -> int | None:
    """List what was done, oldest first: transfers, removals, verifications, and how each ended.

    All of it is read from the ledger on this machine: no site is asked. An operation without an end is under way, or was
    killed; after a day without a sign of life it is called unfinished.
    """
    from hibali_cli.telling_history import list_history

    return list_history(common, options)
