"""`hibali sites cache list`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "list",
    examples=[("hibali sites cache list juwels", "See what juwels keeps, the least recently used first.")],
)
@click.argument("name", metavar="SITE")
def command(common: Common, name: str) -> int | None:
    """List what a site's cache keeps: how much, when it was used last, and the runs that hold it.

    What a run holds, from before it is staged until the run is over, is never evicted.
    """
    from hibali_cli.cache_listing import list_cache

    return list_cache(common, name)
