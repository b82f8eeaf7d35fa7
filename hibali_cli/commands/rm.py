"""`hibali rm`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "rm",
    resumes=True,
    examples=[
        ("hibali rm juwels:@scratch/run7/core", "Remove one file."),
        ("hibali rm -rn juwels:@scratch/run7", "See what would go with a folder."),
        ("hibali rm -r juwels:@scratch/run7", "Remove a folder with all in it, once you agreed."),
        ("hibali rm -r --yes --max-delete 2000 juwels:@scratch/run7", "The same where nobody can be asked."),
    ],
)
@click.argument("location", metavar="SITE:PATH")
@click.option("-r", "--recursive", is_flag=True, help="Remove a folder with all that lies in it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; then --max-delete holds as for --delete.")
@click.option(
    "--max-delete",
    metavar="N|N%",
    help="Refuse to remove more files; with --yes and without it, more than 50.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Print what would go and remove nothing.")
def command(
    common: Common, location: str, *, recursive: bool, yes: bool, max_delete: str | None, dry_run: bool
) -> int | None:
    """Remove a file, or with --recursive a folder and all in it, within --max-delete.

    What a folder holds is counted and shown first. On a terminal you are asked, elsewhere it needs --yes. Symlinks go themselves,
    never what they lead to. A site's root, its named roots, work folder and home are never removed, nor what is read-only, nor a
    place that another operation holds. Killed half-way, the same line goes on.
    """
    from hibali_cli.removing import take_away

    return take_away(common, location, recursive=recursive, yes=yes, max_delete=max_delete, dry_run=dry_run)
