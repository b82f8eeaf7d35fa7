"""`hibali manifest`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.moving import FILTERS
from hibali_cli.options import OUTPUT_FILE, Common


@as_command(
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
def command(
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
    from hibali_cli.taking_stock import bag, take_stock
    from transfers.rules import Rules

    place = read_location(location, common.settings())
    rules = Rules(include=include, exclude=exclude)
    if bagit is None:
        return take_stock(common, place, rules, output, recorded=recorded)
    if output is not None or include or exclude:
        raise UsageError("usage", "a bag is of the whole payload, and has its own files", about="--bagit")
    return bag(common, place, bagit, recorded=recorded)
