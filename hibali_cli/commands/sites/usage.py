"""`hibali sites usage`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "usage",
    examples=[
        ("hibali sites usage", "See what was asked of every site, beside what may be."),
        ("hibali sites usage juwels --json", "The same of one, for a program."),
    ],
)
@click.argument("name", metavar="[SITE]", required=False)
def command(common: Common, name: str | None) -> int | None:
    """Show what this account asked of sites lately, beside their limits.

    Logins, commands of the scheduler, bytes moved, and jobs in the queue; of the last hour and the last day. No site is asked.
    """
    from hibali_cli.site_usage import show_usage

    return show_usage(common, name)
