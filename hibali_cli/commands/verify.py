"""`hibali verify` and `hibali manifest`."""

from __future__ import annotations

import click

from hibali_api.transfer_options import Checking, Patterns
from hibali_cli.command import Section, command
from hibali_cli.commands.transfer import SELECTION
from hibali_cli.options import OUTPUT_FILE, READ, options


@command(
    "verify",
    calls="hibali_cli.handlers.verify:verify",
    section=Section.EVERYDAY,
    examples=[
        (
            "hibali verify juwels:@scratch/data",
            "Hash everything there and compare with the digests recorded at the transfer.",
        ),
        ("hibali verify data juwels:@scratch/data", "Hash both folders and compare them."),
        (
            "hibali verify juwels:@scratch/data --manifest SHA256SUMS",
            "Compare with a file that sha256sum, BagIt or `hibali manifest` wrote.",
        ),
        ("hibali verify 'juwels:data/sub-*'", "Verify what matches."),
        ("hibali verify juwels:@archive --sample 1%", "Check a random sample of one file in a hundred."),
        (
            "hibali verify juwels:@archive --max-time 2h --resume",
            "Check for two hours each night, until everything was checked.",
        ),
    ],
)
@click.argument("first", type=READ, metavar="LOCATION")
@click.argument("second", metavar="[LOCATION]", required=False)
@options(Checking, SELECTION)
def verify_command() -> None:
    """Verify the files at a location by hashing them there.

    Two locations are compared with each other. One location is compared with a manifest, otherwise with the digests of its
    receipts or of its manifest object; without any, the exit code is 3. Files without a digest are listed, and the exit code is 11 if
    all others are correct. Only digests are transferred from a site.

    What matches `*`, `?` and `[...]` in the first location is verified alone, also what is only on record. With two locations, sizes and ages in filters are those of the first; names in --files-from are relative to both.

    A sample, or a verification stopped by --max-time (exit 5), reports how much was not checked, and does not count as verified.
    """


@command(
    "manifest",
    calls="hibali_cli.handlers.verify:make_manifest",
    section=Section.TRANSFERS,
    examples=[
        (
            "hibali manifest juwels:@scratch/data -o SHA256SUMS",
            "Hash the files there; `sha256sum -c SHA256SUMS` checks any copy.",
        ),
        ("hibali manifest --json bucket:raw", "Print a JSON line for every file."),
        ("hibali manifest study/data --bagit study", "Make `study`, which contains `data`, a bag."),
    ],
)
@click.argument("location", type=READ, metavar="LOCATION")
@click.option(
    "-o",
    "--output",
    "output",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write to FILE, atomically, instead of stdout.",
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
    help="Use recorded digests of unchanged files, and report how many.",
)
@options(Patterns)
def manifest_command() -> None:
    """Write the digests of all files at a location, in the format of sha256sum.

    The files are hashed at their site, and only digests are transferred; objects are read. Names are relative to
    LOCATION, sorted by name (byte order). A file that cannot be read is reported and left out, and the exit code is 6.
    """
