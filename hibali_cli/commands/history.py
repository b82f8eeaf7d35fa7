"""`hibali history` and `hibali report`."""

from __future__ import annotations

from typing import Any

import click

from hibali_cli.command import command, listing_group
from hibali_cli.options import OUTPUT_FILE, Common
from hibali_cli.transfer_options import take_time

_RESULTS = ("done", "incomplete", "failed", "later", "refused", "interrupted", "under-way", "unfinished")


@command(
    "show",
    examples=[
        (
            "hibali history show 20260102-030405-0a1b2c3d",
            "What it did, how it ended, and what to do about it.",
        )
    ],
)
@click.argument("identifier", metavar="ID")
def show_command(common: Common, identifier: str) -> int | None:
    """Tell all that is known of one operation: where it moved what, what is proven, what failed and why."""
    from hibali_cli.handlers.history import show_operation

    return show_operation(common, identifier)


@command(
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
def compact_command(common: Common, *, before: int, dry_run: bool) -> int | None:
    """Shorten old journals: details that newer operations made meaningless go, receipts stay.

    Of each file the newest line stays, whatever its age, and with it what `verify` and `history --path` go by. Nothing else
    ever does this: the ledger grows until it is asked to shrink.
    """
    from hibali_cli.handlers.history import compact_history

    return compact_history(common, before / 1e9, dry_run=dry_run)


@command(
    "report",
    examples=[
        ("hibali report", "See whether all is well."),
        ("hibali report -o report.html", "The same as one page, to be opened, printed or sent."),
        ("hibali report -o /var/www/hibali/", "Write index.html there, as a schedule may do each morning."),
    ],
)
@click.option(
    "-o", "--output", metavar="DIR|FILE", type=OUTPUT_FILE, help="Write one HTML page, whole or not at all."
)
@click.option(
    "--days",
    type=click.IntRange(2, 366),
    default=60,
    show_default=True,
    metavar="N",
    help="Draw so many days.",
)
def report_command(common: Common, *, output: str | None, days: int) -> int | None:
    """Say on one page whether all is well: schedules, what failed and what to do, what moved, what is not proven.

    All of it is read on this machine: no site is asked. The page fetches nothing and runs no script.
    """
    from hibali_cli.handlers.status_report import show_report

    return show_report(common, output, days)


@listing_group(
    "history",
    commands=(
        show_command,
        compact_command,
    ),
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
def history_command(common: Common, **options: Any) -> int | None:
    """List what was done, oldest first: transfers, removals, verifications, and how each ended.

    All of it is read from the ledger on this machine: no site is asked. An operation without an end is under way, or was
    killed; after a day without a sign of life it is called unfinished.
    """
    from hibali_cli.handlers.history import list_history

    return list_history(common, options)
