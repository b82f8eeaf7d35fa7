"""`hibali push`, `pull`, `sync`, `plan` and `apply`."""

from __future__ import annotations

import click

from hibali_api import transfer_options as declared
from hibali_cli.command import Section, command
from hibali_cli.help_text import HelpLayout
from hibali_cli.options import INPUT_FILE, OUTPUT_FILE, READ, WRITTEN, SourcesArgument, options
from hibali_cli.other_tools import habit

_null_names = click.option(
    "-0",
    "--from0",
    is_flag=True,
    help="Names in --files-from end with NUL, as written by `find -print0`.",
)
_dry_run = click.option("-n", "--dry-run", is_flag=True, help="Print the plan and change nothing.")
_detailed = click.option(
    "--detailed-exit-code", is_flag=True, help="With --dry-run, exit 10 when there are changes."
)

# what is selected, compared and kept
SELECTION = options(declared.Patterns, declared.Names, _null_names, declared.Facts)
COMPARISON = options(declared.Digests, SELECTION, declared.Renaming, declared.Metadata)
EXECUTION = options(declared.Backup, _dry_run, _detailed, declared.Pace)
RECURSIVE, SHOWN = habit("-r", "-R", "--recursive"), habit("-P", "--progress")
_moving = options(declared.Deletion, EXECUTION, declared.Ways, COMPARISON, declared.Saving, RECURSIVE, SHOWN)

LAYOUT = HelpLayout(
    {
        "output": "Plan and pace",
        "direct": "Route",
        "backup_dir": "Deletion and backup",
        "move": "Deletion and backup",
        "delete": "Deletion and backup",
        "dry_run": "Plan and pace",
        "via": "Route",
        "checksum": "Selection and comparison",
        "links": "Metadata and verification",
        "push_to": "Datasets",
        "as_type": "CBRAIN",
    },
    frozenset(
        {
            "output",
            "direct",
            "delete",
            "max_delete",
            "backup_dir",
            "dry_run",
            "bwlimit",
            "checksum",
            "include",
            "exclude",
            "files_from",
        }
    ),
)


@command(
    "push",
    calls="hibali_cli.handlers.transfers:push",
    section=Section.EVERYDAY,
    layout=LAYOUT,
    resumes=True,
    examples=[
        ("hibali push data juwels:@scratch/data", "Send a folder to a site."),
        ("hibali push -n --delete data juwels:@scratch/data", "Show what would be sent and deleted."),
        ("hibali push scan.nii.gz bucket:raw/", "Send one file to a bucket."),
        (
            "hibali push sub-01 sub-02 notes.txt juwels:data",
            "Send several into a folder, each under its name.",
        ),
    ],
)
@click.argument("local", cls=SourcesArgument, type=READ)
@click.argument("target", type=WRITTEN, metavar="SITE:PATH")
@options(declared.Removal, _moving)
def push_command() -> None:
    """Send files to a site; nothing is deleted without --delete.

    The contents of a folder go into PATH; a file goes to exactly that name, or into PATH when it ends in a
    slash. Of several sources each goes into PATH under its own name, as with `cp -r`. Files that exist there unchanged are not sent
    again. Every file is hashed at both ends before it gets its name.
    """


@command(
    "pull",
    calls="hibali_cli.handlers.transfers:pull",
    section=Section.EVERYDAY,
    layout=LAYOUT,
    resumes=True,
    examples=[
        ("hibali pull juwels:@scratch/results results", "Fetch a folder's contents."),
        ("hibali pull bucket:raw/scan.nii.gz ./", "Fetch one file into the current folder."),
        ("hibali pull 'juwels:data/sub-*' subjects", "Fetch what matches, each under its name."),
    ],
)
@click.argument("source", cls=SourcesArgument, type=READ, metavar="SITE:PATH...")
@click.argument("local", type=WRITTEN)
@options(declared.Removal, _moving)
def pull_command() -> None:
    """Fetch files from a site; nothing is deleted without --delete.

    The contents of a folder go into LOCAL; a file goes to exactly that name, or into LOCAL when it ends in a
    slash. Of several sources, and of what matches `*`, `?` and `[...]`, each goes into LOCAL under its own name. Files that exist here
    unchanged are not fetched again. Every file is hashed at both ends before it gets its name.
    """


@command(
    "sync",
    calls="hibali_cli.handlers.transfers:sync",
    section=Section.EVERYDAY,
    layout=LAYOUT,
    resumes=True,
    examples=[
        (
            "hibali sync juwels:@scratch/data bucket:data",
            "Copy from one site to another through this machine.",
        ),
        ("hibali sync --direct juwels:data jureca:data", "Copy directly from one ssh site to another."),
        (
            "hibali sync --delete --max-delete 100 data juwels:data",
            "Also delete, with a limit.",
        ),
    ],
)
@click.argument("source", cls=SourcesArgument, type=READ, metavar="FROM...")
@click.argument("target", type=WRITTEN, metavar="TO")
@options(declared.Direct, _moving)
def sync_command() -> None:
    """Copy files from FROM to TO; nothing is deleted without --delete.

    Either side may be a local path or SITE:PATH, with several sources or wildcards as for `push` and `pull`. Bytes between two sites
    pass through this machine without being stored here, except with --direct.
    """


@command(
    "plan",
    calls="hibali_cli.handlers.transfers:make_plan",
    section=Section.TRANSFERS,
    layout=LAYOUT,
    examples=[
        ("hibali plan --delete data juwels:@scratch/data -o data.plan", "Save a plan for review."),
        ("hibali apply data.plan", "Execute exactly that plan."),
        ("hibali plan data juwels:@scratch/data", "Only print it."),
    ],
)
@click.argument("source", type=READ, metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write the plan to FILE (JSON lines) and print a summary.",
)
@click.option("--detailed-exit-code", is_flag=True, help="Exit 10 when there are changes.")
@options(declared.Deletion, COMPARISON)
def plan_command() -> None:
    """Plan what `sync` would do, without doing it; -o saves the plan for `apply`.

    Without -o every action is printed, as with --dry-run. The options are those of `sync`, and they are saved in
    the plan: `apply` deletes only files that --delete and --max-delete allow here.
    """


@command(
    "apply",
    calls="hibali_cli.handlers.transfers:apply_plan",
    section=Section.TRANSFERS,
    resumes=True,
    examples=[
        ("hibali apply data.plan", "Execute a plan that `hibali plan` saved."),
        ("hibali apply -n data.plan", "Check that the plan is still valid, and show the remaining actions."),
        (
            "hibali apply theirs.plan data juwels:@scratch/data",
            "Execute another person's plan after reviewing it.",
        ),
    ],
)
@click.argument("file", type=INPUT_FILE, metavar="FILE")
@click.argument("ends", nargs=-1, metavar="[FROM TO]")
@options(EXECUTION, declared.Saving)
def apply_command() -> None:
    """Execute exactly a saved plan, or refuse it.

    hibali lists both sides again first: if a file of the plan has changed since, nothing is transferred and the exit code
    is 8. A truncated or edited plan is refused. Run the same command again to resume an interrupted
    plan.

    A plan that was not signed in this account's state folder, that belongs to another account or that other accounts
    can write to is refused, unless you also give FROM and TO, the source and the target of the plan.
    """
