"""`hibali sites check`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.site_check import check_and_tell


@as_command("check", examples=[("hibali sites check juwels", "Log in once and see what juwels offers.")])
@click.argument("name")
def command(common: Common, name: str) -> int | None:
    """Check that a site answers and what it offers.

    Nothing is left behind there.
    """
    check_and_tell(common, common.settings().site(name))
    return None
