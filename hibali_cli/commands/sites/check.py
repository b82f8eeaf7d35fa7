"""`hibali sites check`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.site_check import check_and_tell

_EXAMPLES = [
    ("hibali sites check juwels", "Log in once and see what juwels offers."),
    ("hibali sites check juwels --tune --logins 4", "Measure the line to juwels with up to four logins."),
]


@as_command("check", examples=_EXAMPLES)
@click.argument("name", metavar="SITE")
@click.option("--tune", is_flag=True, help="Measure the line, and propose `logins` and `channels`.")
@click.option(
    "--logins",
    type=click.IntRange(1, 64),
    metavar="N",
    help="With --tune, try up to N logins; else as many as the site's settings allow.",
)
def command(common: Common, name: str, *, tune: bool, logins: int | None) -> int | None:
    """Check that a site answers and what it offers.

    Nothing is left behind there. --tune sends at most 64 MiB of random data there and back for each of a few settings, in a
    folder of its own in the default root.
    """
    settings = common.settings()
    site = settings.site(name)
    if logins is not None and not tune:
        raise click.UsageError("--logins says how many logins --tune may try: give --tune, too.")
    check_and_tell(common, site)
    if tune:
        from hibali.locations import read_location
        from hibali_cli.site_tuning import tune_and_tell

        place = read_location(f"{name}:", settings) if site.kind == "ssh" else None
        tune_and_tell(common, site, place, logins)
    return None
