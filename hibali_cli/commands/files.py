"""`hibali ls`, `cat`, `cp`, `du`, `mkdir`, `mv` and `rm`."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command
from hibali_cli.commands.transfer import COMPARISON, EXECUTION, LAYOUT, RECURSIVE, SHOWN
from hibali_cli.fields import ENTRY, fields_option
from hibali_cli.options import READ, WRITTEN, SourcesArgument, options
from hibali_cli.other_tools import HUMAN_READABLE, habit

_exact_key = click.option(
    "--exact-key",
    is_flag=True,
    help="Take the (first) SITE:PATH as the exact key of an object, also if it cannot be a path, as a//b.",
)


@command(
    "ls",
    calls="hibali_cli.handlers.files:list_place",
    section=Section.EVERYDAY,
    examples=[
        ("hibali ls juwels:@scratch", "List a folder."),
        (
            "hibali ls 'juwels:data/sub-*/anat/*.nii.gz'",
            "List what matches; ** matches any number of folders.",
        ),
        ("hibali ls -R --fields size,path bucket:raw", "Choose the columns."),
        ("hibali ls -R --json bucket:raw", "List everything below, one JSON line each."),
    ],
)
@click.argument("location", type=READ, metavar="SITE:PATH")
@click.option("-R", "--recursive", is_flag=True, help="List everything below, not only the folder itself.")
@click.option("-l", "--long", is_flag=True, help="Show size and modification time.")
@click.option("--bytes", "exact", is_flag=True, help="Show sizes in bytes (includes -l).")
@habit("-a", "--all")
@habit(HUMAN_READABLE)
@fields_option(ENTRY)
def ls_command() -> None:
    """List the files and folders at a location, sorted by name (byte order).

    `*`, `?` and `[...]` match within a name, and `**` any number of folders; quote them, because your shell expands them.
    What matches is listed with its path below the folder before the first wildcard. If a file or folder has exactly this
    name, it is listed instead; after a component `.`, as in 'SITE:./a*', nothing is a wildcard.
    """


@command(
    "cat",
    calls="hibali_cli.handlers.files:write_contents",
    section=Section.FILES,
    examples=[
        ("hibali cat juwels:@scratch/run7/log.txt | tail", "Show the end of a file."),
        ("hibali cat bucket:raw/a.gz bucket:raw/b.gz | gunzip -c", "Concatenate several files."),
    ],
)
@click.argument("locations", type=READ, metavar="SITE:PATH...", nargs=-1, required=True)
@click.option("--recall", is_flag=True, help="Also read files that are on tape.")
@_exact_key
def cat_command() -> None:
    """Write the bytes of files to stdout unchanged.

    They are checked against the digest that their site computes or has recorded. Where that fails, or a file is
    missing, the command fails; bytes written before remain, so check the exit code.
    """


@command(
    "du",
    calls="hibali_cli.handlers.files:show_usage",
    section=Section.FILES,
    examples=[
        ("hibali du juwels:@scratch", "Count the files and bytes of a tree."),
        ("hibali du --depth 1 bucket:raw", "Also count each of its folders."),
    ],
)
@click.argument("location", type=READ, metavar="SITE:PATH")
@click.option(
    "-d",
    "--depth",
    type=click.IntRange(0, 1000),
    default=0,
    metavar="N",
    help="Also show folders down to this depth.",
)
@click.option("--bytes", "exact", is_flag=True, help="Show sizes in bytes.")
@habit("-s", "--summarize")
@habit(HUMAN_READABLE)
def du_command() -> None:
    """Count the files and bytes of a tree, as a transfer of it would.

    Sizes are those of files, as transferred, not their use of disk space. A folder is listed after
    its subfolders; the total is the last line.
    """


@command(
    "mkdir",
    calls="hibali_cli.handlers.files:make_folder",
    section=Section.FILES,
    examples=[("hibali mkdir juwels:@scratch/run7/input", "Create a folder and its parents.")],
)
@click.argument("location", type=WRITTEN, metavar="SITE:PATH")
@habit("-p", "--parents")
def mkdir_command() -> None:
    """Create a folder and its parents; an existing one is not changed.

    An object store has no folders: nothing is created there, and the exit code is 0.
    """


@command(
    "rm",
    calls="hibali_cli.handlers.files:remove_path",
    asks="unless --yes",
    section=Section.EVERYDAY,
    resumes=True,
    examples=[
        ("hibali rm juwels:@scratch/run7/core", "Remove one file."),
        ("hibali rm -rn juwels:@scratch/run7", "Show what removing a folder would remove."),
        ("hibali rm -r juwels:@scratch/run7", "Remove a folder and its content after confirmation."),
        ("hibali rm 'juwels:@scratch/run7/core.*'", "Remove what matches, after confirmation."),
        (
            "hibali rm -r --yes --max-delete 2000 juwels:@scratch/run7",
            "Remove it without confirmation, for scripts.",
        ),
    ],
)
@click.argument("location", nargs=-1, required=True, type=WRITTEN, metavar="SITE:PATH...")
@click.option("-r", "--recursive", is_flag=True, help="Remove a folder with its content.")
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    help="Do not ask for confirmation; --max-delete then applies as for --delete.",
)
@click.option(
    "--max-delete",
    metavar="N|N%",
    help="Refuse to remove more files than this (with --yes, the default is 50).",
)
@click.option("-n", "--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@_exact_key
def rm_command() -> None:
    """Remove a file, or with --recursive a folder and its content, within --max-delete.

    Several PATHs, and what matches `*`, `?` and `[...]`, are removed as one operation. hibali counts their content, or that of a folder,
    and shows it first. On a terminal it asks for confirmation, elsewhere --yes is needed. Symlinks are removed themselves,
    never their targets. A site's root, its named roots, work folder and home are never removed, and neither is a read-only location or one
    that another operation has locked. After an interruption, run the same command again to resume.
    """


@command(
    "cp",
    calls="hibali_cli.handlers.within_site:copy_files",
    section=Section.FILES,
    layout=LAYOUT,
    resumes=True,
    examples=[
        ("hibali cp juwels:study/run7 juwels:@archive/run7", "Copy a folder at a site."),
        ("hibali cp bucket:raw/scan.nii.gz bucket:shared/", "Copy one object within an object store."),
        ("hibali cp 'juwels:study/run*' juwels:@archive", "Copy what matches into a folder."),
    ],
)
@click.argument("source", cls=SourcesArgument, type=READ, metavar="SITE:PATH...")
@click.argument("target", type=WRITTEN, metavar="SITE:PATH")
@options(EXECUTION, COMPARISON)
@_exact_key
@RECURSIVE
@SHOWN
def cp_command() -> None:
    """Copy files within a site, without sending them through this machine.

    The contents of a folder go into the second PATH; a file goes to exactly that name, or into it when it ends in a slash;
    of several sources, and of what matches wildcards, each goes into it under its own name. Files that differ there are replaced, as by `sync`; nothing is deleted. Every copy is verified. At an ssh site a second
    agent writes the copies, in an object store and at a WebDAV server the server does (from WebDAV, hibali reads the copies
    back to verify them). `copy` is the same command.
    """


@command(
    "mv",
    calls="hibali_cli.handlers.within_site:move_path",
    section=Section.FILES,
    resumes=True,
    examples=[
        ("hibali mv juwels:study/run7 juwels:study/run7-old", "Rename a folder."),
        ("hibali mv -n bucket:raw/2025 bucket:archive/2025", "Show what would be moved, and how."),
    ],
)
@click.argument("source", type=WRITTEN, metavar="SITE:PATH")
@click.argument("target", type=WRITTEN, metavar="SITE:PATH")
@click.option("-n", "--dry-run", is_flag=True, help="Print what would be moved, and change nothing.")
def mv_command() -> None:
    """Move or rename a file or folder within a site.

    Where the store has a rename, the name changes at once. Elsewhere, as in an object store or between two
    filesystems of a site, hibali copies everything, verifies every copy and then removes the source. An existing target is refused and
    never replaced. As with `rm`, a site's roots, its work folder and home, read-only locations and locked ones are not moved. After an
    interruption, run the same command again to resume.
    """
