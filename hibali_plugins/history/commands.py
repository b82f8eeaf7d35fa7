"""`hibali history`: list, show and shorten what the ledger has of operations."""

from __future__ import annotations

import click

from hibali.amounts import read_moment_ns
from hibali_cli.command import Section, command, listing_group
from hibali_cli.fields import OPERATION, fields_option
from hibali_cli.options import COUNT, reading

_RESULTS = ("done", "incomplete", "failed", "later", "refused", "interrupted", "under-way", "unfinished")


@command(
    "show",
    calls="hibali_plugins.history.showing:show_operation",
    examples=[
        (
            "hibali history show 20260102-030405-0a1b2c3d",
            "Show its result and failures, and how to continue.",
        )
    ],
)
@click.argument("identifier", metavar="ID")
def show_command() -> None:
    """Show one operation in full: source and target, counts, verification, failures and their reasons."""


@command(
    "compact",
    calls="hibali_plugins.history.showing:compact_history",
    resumes=True,
    examples=[
        ("hibali history compact --older-than 180d -n", "Show how much space it would free."),
        ("hibali history compact --older-than 180d", "Shorten journals older than half a year."),
    ],
)
@click.option(
    "--older-than",
    "before",
    callback=reading(read_moment_ns),
    required=True,
    metavar="DURATION|TIME",
    help="Only operations started longer ago than DURATION (180d), or before TIME.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only show how much would be removed.")
def compact_command() -> None:
    """Shorten old journals: remove details that newer operations replaced, and keep receipts.

    The newest line of each file is kept regardless of its age, because `verify` and `history --path` need it. No other command
    shortens the ledger.
    """


@listing_group(
    "history",
    calls="hibali_plugins.history.showing:list_history",
    section=Section.EVERYDAY,
    commands=(
        show_command,
        compact_command,
    ),
    examples=[
        ("hibali history", "Show all operations, the latest last."),
        ("hibali history --site juwels --since 7d", "Show only this site and the last week."),
        ("hibali history --result failed --result incomplete", "Show only what failed."),
        (
            "hibali history --path juwels:@scratch/data/sub-01.nii",
            "Show when this file last moved, and how it was verified.",
        ),
        ("hibali history show 20260102-030405-0a1b2c3d", "Show one operation in full."),
    ],
)
@click.option("--site", "site_name", metavar="SITE", help="Only operations from or to SITE.")
@click.option("--schedule", metavar="NAME", help="Only operations of this schedule.")
@click.option(
    "--path", metavar="LOCATION", help="Show when this file or folder moved or was verified, and how."
)
@click.option(
    "--result",
    "results",
    type=click.Choice(_RESULTS),
    multiple=True,
    help="Only operations with this result; may be repeated.",
)
@click.option(
    "--since",
    callback=reading(read_moment_ns),
    metavar="DURATION|TIME",
    help="Only those started within DURATION (7d), or since TIME.",
)
@click.option(
    "--until",
    callback=reading(read_moment_ns),
    metavar="DURATION|TIME",
    help="Only those started before DURATION ago, or before TIME.",
)
@click.option("--last", type=COUNT, metavar="N", help="Only the latest N of them.")
@fields_option(OPERATION)
def history_command() -> None:
    """List operations, oldest first: transfers, removals and verifications, with their results.

    The list is made from the ledger of this machine, without connections. An operation without an end is active, or was
    killed; after a day without activity it is shown as unfinished.
    """
