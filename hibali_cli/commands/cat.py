"""`hibali cat`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "cat",
    examples=[
        ("hibali cat juwels:@scratch/run7/log.txt | tail", "Look at the end of a file."),
        ("hibali cat bucket:raw/a.gz bucket:raw/b.gz | gunzip -c", "Several files, one behind the other."),
    ],
)
@click.argument("locations", metavar="SITE:PATH...", nargs=-1, required=True)
@click.option("--recall", is_flag=True, help="Read a file whose bytes are on tape, too.")
def command(common: Common, locations: tuple[str, ...], *, recall: bool) -> int | None:
    """Write the bytes of files to stdout, exactly as they are.

    They are checked against the digest that their site computes or has on record for them. Where that fails, or a file is
    not there, it ends with that; what was written before is not taken back, so look at the exit code.
    """
    from hibali.errors import UsageError
    from hibali.locations import read_location
    from hibali_cli.looking import write_contents

    if common.json:
        raise UsageError("usage", "the bytes of a file are no JSON", about="--json")
    settings = common.settings()
    return write_contents(common, [read_location(text, settings) for text in locations], recall=recall)
