"""`hibali runs adopt`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "adopt",
    examples=[
        ("hibali runs adopt juwels", "See which runs at juwels this machine does not know."),
        ("hibali runs adopt juwels --yes", "Take up all of them that have a job."),
        ("hibali runs adopt juwels 20260102-030405-0a1b2c3d", "Take up this one."),
    ],
)
@click.argument("named", metavar="[SITE|ID]...", nargs=-1)
@click.option("-y", "--yes", is_flag=True, help="Take up all that can be.")
def command(common: Common, named: tuple[str, ...], *, yes: bool) -> int | None:
    """Find runs that another ledger of this account began, and take them up.

    After a lost state folder, or from another machine, a site may hold runs that this ledger does not know. They are shown, and with
    --yes, or by their ids, followed from here as if they had been begun here. A run without a job is left to the ledger that began
    it, and so is one that is being submitted now. Without SITE, every site where runs can be is looked at.
    """
    from hibali_cli.adopting import adopt_and_tell

    return adopt_and_tell(common, named, everything=yes)
