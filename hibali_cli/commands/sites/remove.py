"""`hibali sites remove`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command("remove", examples=[("hibali sites remove juwels", "Forget juwels; its data stays where it is.")])
@click.argument("name", metavar="SITE")
def command(common: Common, name: str) -> int | None:
    """Take a site out of config.toml.

    Data and runs at the site stay; comments elsewhere in the file do, too.
    """
    from hibali.config.edit import remove_site

    path = remove_site(common.config, name)
    if common.json:
        common.output.record("site-change", {"name": name, "change": "removed", "file": str(path)})
    common.output.say(f"{name} is no longer in {path}; nothing was removed at the site.")
    return None
