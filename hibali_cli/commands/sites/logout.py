"""`hibali sites logout`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "logout",
    examples=[
        ("hibali sites logout archive", "Revoke the login to Globus of the site archive, and forget it.")
    ],
)
@click.argument("name")
def command(common: Common, name: str) -> int | None:
    """Revoke a login to Globus, and forget it.

    Other sites with the same client are logged out, too. Where Globus is not reached the login is kept, and the command ends
    with 5: typed again, it is revoked then. Transfers that were handed over go on.
    """
    from hibali_cli.globus_login import log_out_and_tell

    log_out_and_tell(common, common.settings().site(name))
    return None
