"""`hibali status`: what runs now, or how a folder differs from the place it was transferred to."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command
from hibali_cli.fields import STATUS, fields_option
from hibali_cli.options import duration_of


@command(
    "status",
    calls="hibali_plugins.status.showing:show_status",
    section=Section.REPORTS,
    examples=[
        ("hibali status", "Show what runs now: transfers, runs and schedules."),
        ("hibali status --watch", "Show it until Ctrl-C, always up to date."),
        ("hibali status --update", "Query the sites of unfinished runs first."),
        ("hibali status --fields kind,id,name,target,seconds_left", "Choose the columns."),
        (
            "hibali status data",
            "Show how a folder differs from the place it was last pushed to or pulled from.",
        ),
        ("hibali status data --remote", "Also connect, and show what changed there."),
    ],
)
@click.argument("folder", required=False)
@click.option("--watch", is_flag=True, help="Show it again and again until Ctrl-C or --max-time.")
@click.option(
    "--interval",
    callback=duration_of,
    metavar="DURATION",
    help="With --watch, the time between two updates (default: 2s).",
)
@click.option("--update", is_flag=True, help="Query the sites of unfinished runs first.")
@click.option(
    "--checksum", is_flag=True, help="With FOLDER, compare contents by sha256 instead of size and time."
)
@click.option("--remote", is_flag=True, help="With FOLDER, also connect and show what changed there.")
@click.option("--detailed-exit-code", is_flag=True, help="With FOLDER, exit with 10 if it differs.")
@fields_option(STATUS)
def status_command() -> None:
    """Show what runs now here and at sites, one line each; with FOLDER, show how it differs from its last transfer.

    Without FOLDER: running transfers with their rate and time left, unfinished runs as they were last observed, and schedules with
    their next time and last result. With FOLDER: files added, modified and removed here since the folder was last pushed or
    pulled, as the ledger knows them; it connects only with --remote, and changes nothing.
    """
