"""`hibali runs clean`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common, duration_of


@as_command(
    "clean",
    resumes=True,
    examples=[
        ("hibali runs clean --dry-run", "See which folders of runs would be removed at their sites."),
        (
            "hibali runs clean --site juwels --older-than 30d",
            "Remove those at juwels that ended a month ago.",
        ),
        ("hibali runs clean ID --all-ended --yes", "Remove one whose outputs nobody wants."),
    ],
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--site", "site_name", metavar="SITE", help="Only runs at SITE.")
@click.option(
    "--older-than", callback=duration_of, metavar="DURATION", help="Leave those alone that ended later."
)
@click.option("--all-ended", is_flag=True, help="Also those whose outputs were not collected.")
@click.option("-y", "--yes", is_flag=True, help="With --all-ended, do not ask.")
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be removed.")
def command(
    common: Common,
    run_ids: tuple[str, ...],
    *,
    site_name: str | None,
    older_than: float | None,
    all_ended: bool,
    yes: bool,
    dry_run: bool,
) -> int | None:
    """Remove the folders of runs at their sites, once they are over and collected.

    The cache stays, and so does what the ledger knows of the runs. A run that is not over, or LOST, is never touched. Killed
    half-way, the same line goes on.
    """
    from hibali_cli.cleaning import Asked, clean_and_tell
    from runs.clean import Wanted

    wanted = Wanted(all_ended=all_ended, older_than=older_than or 0.0)
    return clean_and_tell(common, Asked(run_ids, site_name, wanted, yes=yes, dry=dry_run))
