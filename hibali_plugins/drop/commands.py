"""`hibali drop`: free local files of which a site holds a verified copy."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command
from hibali_cli.options import WRITTEN


@command(
    "drop",
    calls="hibali_plugins.drop.showing:drop_paths",
    section=Section.FILES,
    resumes=True,
    examples=[
        (
            "hibali drop data --at juwels:@archive/data",
            "Free local files that juwels has with the same content.",
        ),
        (
            "hibali drop data/raw --at juwels",
            "Look there where the folder was last pushed to or pulled from.",
        ),
        (
            "hibali drop -n data --at juwels",
            "Hash both copies, print what would be removed, and remove nothing.",
        ),
        (
            "hibali drop a.nii b.nii --at bucket:scans",
            "Several paths: each is in `scans` under its own name.",
        ),
    ],
)
@click.argument("paths", nargs=-1, required=True, type=WRITTEN, metavar="PATH...")
@click.option(
    "--at",
    "at",
    required=True,
    metavar="SITE[:PLACE]",
    help="The copy, named as in `push`; without PLACE where it was last pushed to or pulled from.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
def drop_command() -> None:
    """Remove local files, but only those that a site holds with the same content.

    hibali hashes each file here and its copy at the site now. If both have the same sha256, and the file here did not change since, it is
    removed; otherwise it stays and is named, and the exit code is 6. Symlinks, files with several hard links and special files stay,
    too. Folders are not removed. To get the files back, use `pull`. After an interruption, run the same command again to resume.
    """
