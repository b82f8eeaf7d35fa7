"""`hibali verify`."""

from __future__ import annotations

from typing import Any

import click

from hibali_cli.command import command as as_command
from hibali_cli.moving import add_choosing_options
from hibali_cli.options import Common


@as_command(
    "verify",
    examples=[
        (
            "hibali verify juwels:@scratch/data",
            "Hash everything there, compare with what was recorded when it arrived.",
        ),
        ("hibali verify data juwels:@scratch/data", "Hash both places and compare."),
        (
            "hibali verify juwels:@scratch/data --manifest SHA256SUMS",
            "Compare with a file that sha256sum, BagIt or `hibali manifest` wrote.",
        ),
        ("hibali verify juwels:@archive --sample 1%", "Look at one file in a hundred, drawn by chance."),
        (
            "hibali verify juwels:@archive --max-time 2h --resume",
            "Each night two hours, until all of it was looked at.",
        ),
    ],
)
@click.argument("first", metavar="LOCATION")
@click.argument("second", metavar="[LOCATION]", required=False)
@click.option("--manifest", metavar="FILE", help="Compare with the digests in FILE (`-`: from stdin).")
@click.option(
    "--bagit",
    is_flag=True,
    help="Read FILE as a BagIt manifest, as one called manifest-sha256.txt is anyhow.",
)
@click.option("--exact", is_flag=True, help="Name files that nothing is known of, too, and exit 6.")
@click.option("--sample", metavar="N|N%", help="Look at so many files only, drawn by chance.")
@click.option(
    "--seed",
    type=click.IntRange(0, 10**18),
    metavar="NUMBER",
    help="Draw the sample that this seed drew before.",
)
@click.option(
    "--resume", is_flag=True, help="Go on where the last call that asked the same was stopped or killed."
)
@add_choosing_options
def command(common: Common, first: str, second: str | None, **options: Any) -> int | None:
    """Prove what stands at a place, always by hashing it there.

    Two places are compared with each other; one place is compared with a manifest, else with the digests of its
    receipts or of its manifest object, and where there are none the exit is 3. Files without one are named, and the exit is 11 if
    all others are right. From a site only digests travel.

    Of two places the first says how old and how large a file is; names in --files-from are relative to both.

    A sample, or a call that --max-time ends (exit 5), says how much it did not look at, and calls the tree unproven.
    """
    from hibali_cli.proving import verify

    return verify(common, first, second, options)
