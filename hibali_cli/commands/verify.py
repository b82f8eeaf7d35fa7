"""`hibali verify`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.failure import tell_people
from hibali_cli.moving import FILTERS
from hibali_cli.options import Common


@as_command(
    "verify",
    examples=[
        (
            "hibali verify juwels:@scratch/data",
            "Hash everything there, compare with what was recorded when it arrived.",
        ),
        ("hibali verify data juwels:@scratch/data", "Hash both places and compare."),
    ],
)
@click.argument("first", metavar="LOCATION")
@click.argument("second", metavar="[LOCATION]", required=False)
@FILTERS[0]
@FILTERS[1]
def command(
    common: Common, first: str, second: str | None, include: tuple[str, ...], exclude: tuple[str, ...]
) -> int | None:
    """Prove what stands at a place, always by hashing it there.

    Two places are compared with each other; one place is compared with the digests of its receipts or of its
    manifest object, and where there are none the exit is 3.
    """
    from hibali.errors import IncompleteError
    from hibali.locations import read_location
    from hibali_cli.progress import listening
    from transfers.rules import Rules
    from transfers.verify import verify_location, verify_locations

    settings = common.settings()
    rules = Rules(include=include, exclude=exclude)
    place = read_location(first, settings)
    with listening(common, f"verify {first}") as tell:
        if second is None:
            receipt = verify_location(place, rules, tell)
        else:
            receipt = verify_locations(place, read_location(second, settings), rules, tell)
    if common.json:
        common.output.record("receipt", receipt.to_record())
    elif receipt.exit:
        tell_people(
            IncompleteError(
                "not-proven",
                f"{receipt.files_failed} differ or are missing; they are named above",
                about=receipt.target,
            )
        )
    else:
        common.output.say(
            f"{receipt.files_kept} of {receipt.files} files are what they should be; {receipt.seconds:.1f} s"
        )
    return int(receipt.exit)
