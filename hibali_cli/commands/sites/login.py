"""`hibali sites login`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "login",
    examples=[
        ("hibali sites login archive", "Log in to Globus for the collection of the site archive."),
        ("hibali sites logout archive", "Revoke that login, and forget it."),
    ],
)
@click.argument("name")
def command(common: Common, name: str) -> int | None:
    """Log in to Globus for a site that has a collection.

    Prints a URL that any browser opens, on any machine, and takes the code that is shown there. Consents that the collection
    asks for are asked for, too. Nothing is asked where the login is good already, or where config.toml names a client with a
    secret. Without a terminal nothing is ever asked: exit 4.
    """
    from hibali_cli.globus_login import log_in_and_tell

    log_in_and_tell(common, common.settings().site(name))
    return None
