"""`hibali sites cache evict`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "evict",
    resumes=True,
    examples=[
        ("hibali sites cache evict juwels --keep 500G -n", "See what would go until 500 GiB are left."),
        ("hibali sites cache evict juwels --keep 30d", "Take out what nobody used for 30 days."),
        ("hibali sites cache evict juwels", "Take out all that no run holds."),
    ],
)
@click.argument("name", metavar="SITE")
@click.option(
    "--keep",
    metavar="SIZE|DURATION",
    help="Keep so much (500M, 2G), or what was used so lately (12h, 30d: lower case).",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would go.")
def command(common: Common, name: str, *, keep: str | None, dry_run: bool) -> int | None:
    """Take entries out of a site's cache, the least recently used first; without --keep all of them.

    What a run holds stays. What is taken out is staged again when a run needs it. Killed half-way, the same line goes on.
    """
    from hibali_cli.cache_listing import evict_cache

    return evict_cache(common, name, keep, dry=dry_run)
