"""`hibali pipelines remotes remove`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "remove", examples=[("hibali pipelines remotes remove lab", "Forget lab; what lies there stays.")]
)
@click.argument("name")
def command(common: Common, name: str) -> int | None:
    """Take a remote out of config.toml.

    What was fetched from it and what lies there stay.
    """
    from hibali.config.edit import remove_remote

    path = remove_remote(common.config, name)
    if common.json:
        common.output.record("remote", {"name": name, "url": "", "change": "removed"})
    else:
        common.output.say(f"{name} is no longer in {path}; what lies there stays.")
    return None
