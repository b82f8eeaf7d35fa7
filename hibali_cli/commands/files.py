"""`hibali ls`, `cat`, `du`, `mkdir` and `rm`."""

from __future__ import annotations

import click

from hibali_cli.command import command
from hibali_cli.options import Common


@command(
    "ls",
    examples=[
        ("hibali ls juwels:@scratch", "What a folder holds."),
        ("hibali ls -R --json bucket:raw", "Everything below, a JSON line each."),
    ],
)
@click.argument("location", metavar="SITE:PATH")
@click.option("-R", "--recursive", is_flag=True, help="List everything below, not only the folder itself.")
@click.option("-l", "--long", is_flag=True, help="Show size and modification time.")
def ls_command(common: Common, location: str, *, recursive: bool, long: bool) -> int | None:
    """List what a place holds, in the order of the names' bytes."""
    from hibali.locations import read_location
    from hibali_cli.handlers.files import list_place

    return list_place(common, read_location(location, common.settings()), recursive=recursive, long=long)


@command(
    "cat",
    examples=[
        ("hibali cat juwels:@scratch/run7/log.txt | tail", "Look at the end of a file."),
        ("hibali cat bucket:raw/a.gz bucket:raw/b.gz | gunzip -c", "Several files, one behind the other."),
    ],
)
@click.argument("locations", metavar="SITE:PATH...", nargs=-1, required=True)
@click.option("--recall", is_flag=True, help="Read a file whose bytes are on tape, too.")
def cat_command(common: Common, locations: tuple[str, ...], *, recall: bool) -> int | None:
    """Write the bytes of files to stdout, exactly as they are.

    They are checked against the digest that their site computes or has on record for them. Where that fails, or a file is
    not there, it ends with that; what was written before is not taken back, so look at the exit code.
    """
    from hibali.errors import UsageError
    from hibali.locations import read_location
    from hibali_cli.handlers.files import write_contents

    if common.json:
        raise UsageError("usage", "the bytes of a file are no JSON", subject="--json")
    settings = common.settings()
    return write_contents(common, [read_location(text, settings) for text in locations], recall=recall)


@command(
    "du",
    examples=[
        ("hibali du juwels:@scratch", "How many files and bytes a tree has."),
        ("hibali du --depth 1 bucket:raw", "The same of each of its folders, too."),
    ],
)
@click.argument("location", metavar="SITE:PATH")
@click.option(
    "-d",
    "--depth",
    type=click.IntRange(0, 1000),
    default=0,
    metavar="N",
    help="Show the folders so many levels down, too.",
)
def du_command(common: Common, location: str, *, depth: int) -> int | None:
    """Count the files and bytes of a tree, as a transfer of it would.

    Bytes are the sizes of files: what a transfer of them carries, not what they take on a disk. A folder comes behind
    those in it, the whole place last.
    """
    from hibali.locations import read_location
    from hibali_cli.handlers.files import show_usage

    return show_usage(common, read_location(location, common.settings()), depth)


@command(
    "mkdir",
    examples=[("hibali mkdir juwels:@scratch/run7/input", "Make a folder, and those above it.")],
)
@click.argument("location", metavar="SITE:PATH")
def mkdir_command(common: Common, location: str) -> int | None:
    """Make a folder and those above it; one that is there already is left as it is.

    An object store has no folders: nothing is made there, that is said, and the exit is 0.
    """
    from hibali.locations import read_target
    from hibali_cli.handlers.files import make_folder

    return make_folder(common, read_target(location, common.settings()))


@command(
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
def rm_command(
    common: Common, location: str, *, recursive: bool, yes: bool, max_delete: str | None, dry_run: bool
) -> int | None:
    """Remove a file, or with --recursive a folder and all in it, within --max-delete.

    What a folder holds is counted and shown first. On a terminal you are asked, elsewhere it needs --yes. Symlinks go themselves,
    never what they lead to. A site's root, its named roots, work folder and home are never removed, nor what is read-only, nor a
    place that another operation holds. Killed half-way, the same line goes on.
    """
    from hibali_cli.handlers.remove import take_away

    return take_away(common, location, recursive=recursive, yes=yes, max_delete=max_delete, dry_run=dry_run)
