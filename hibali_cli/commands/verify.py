"""`hibali verify` and `hibali manifest`."""

from __future__ import annotations

from typing import Any

import click

from hibali_cli.command import command
from hibali_cli.options import OUTPUT_FILE, Common
from hibali_cli.transfer_options import FILTERS, add_choosing_options


@command(
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
def verify_command(common: Common, first: str, second: str | None, **options: Any) -> int | None:
    """Prove what stands at a place, always by hashing it there.

    Two places are compared with each other; one place is compared with a manifest, else with the digests of its
    receipts or of its manifest object, and where there are none the exit is 3. Files without one are named, and the exit is 11 if
    all others are right. From a site only digests travel.

    Of two places the first says how old and how large a file is; names in --files-from are relative to both.

    A sample, or a call that --max-time ends (exit 5), says how much it did not look at, and calls the tree unproven.
    """
    from hibali_cli.handlers.verify import verify

    return verify(common, first, second, options)


@command(
    "manifest",
    examples=[
        (
            "hibali manifest juwels:@scratch/data -o SHA256SUMS",
            "Hash it there; `sha256sum -c SHA256SUMS` checks any copy.",
        ),
        ("hibali manifest --json bucket:raw", "A JSON line for every file."),
        ("hibali manifest study/data --bagit study", "Make `study`, which has `data` in it, a bag."),
    ],
)
@click.argument("location", metavar="LOCATION")
@click.option(
    "-o",
    "--output",
    "output",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write FILE, whole or not at all, not stdout.",
)
@click.option(
    "--bagit",
    metavar="FOLDER",
    type=OUTPUT_FILE,
    help="Write the tag files of a BagIt bag into FOLDER; LOCATION is its `data`.",
)
@click.option(
    "--recorded",
    is_flag=True,
    help="Take digests on record where a file is what it was, and say how many.",
)
@FILTERS[0]
@FILTERS[1]
def manifest_command(
    common: Common,
    location: str,
    output: str | None,
    bagit: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    *,
    recorded: bool,
) -> int | None:
    """Write the digests of all files at a place, as sha256sum writes them.

    The files are hashed where they are: from a site only digests travel; objects are read. Names are relative to
    LOCATION, in the order of their bytes. A file that could not be read is named, is not in it, and the exit is 6.
    """
    from hibali.errors import UsageError
    from hibali.locations import read_location
    from hibali_cli.handlers.verify import bag, take_stock
    from transfers.rules import Rules

    place = read_location(location, common.settings())
    rules = Rules(include=include, exclude=exclude)
    if bagit is None:
        return take_stock(common, place, rules, output, recorded=recorded)
    if output is not None or include or exclude:
        raise UsageError("usage", "a bag is of the whole payload, and has its own files", subject="--bagit")
    return bag(common, place, bagit, recorded=recorded)
