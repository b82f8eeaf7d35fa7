"""`hibali sites show`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.site_record import site_pairs, site_record


@as_command(
    "show", examples=[("hibali sites show juwels", "See every setting of juwels, defaults included.")]
)
@click.argument("name", metavar="SITE")
def command(common: Common, name: str) -> int | None:
    """Show the settings of a site, defaults included."""
    site = common.settings().site(name)
    if common.json:
        common.output.record("site", site_record(site))
    else:
        common.output.pairs(site_pairs(site))
    return None
