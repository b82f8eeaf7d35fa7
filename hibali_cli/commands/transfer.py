"""`hibali push`, `pull`, `sync`, `plan` and `apply`."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from hibali_cli.command import command
from hibali_cli.handlers.transfer import (
    add_applying_options,
    add_following_options,
    add_moving_options,
    add_packing_options,
    add_planning_options,
    carry_out,
    follow,
    move,
    planned_exit,
    rules_of,
    show_plan,
    take_following,
    take_recorded,
)
from hibali_cli.options import OUTPUT_FILE, Common
from hibali_cli.transfer_options import saving_of


@command(
    "push",
    resumes=True,
    examples=[
        ("hibali push data juwels:@scratch/data", "Make the folder there hold what the folder here holds."),
        ("hibali push -n --delete data juwels:@scratch/data", "See what would be sent and deleted."),
        ("hibali push scan.nii.gz bucket:raw/", "Put one file into a place."),
        (
            "hibali push --pack study juwels:@archive/study",
            "Thousands of small files as a few tar files; pull sees the files.",
        ),
        (
            "hibali push --follow --append '*.log' --until run7/FINISHED run7 juwels:@scratch/run7",
            "Send what a simulation writes while it writes it.",
        ),
    ],
)
@click.argument("local")
@click.argument("target", metavar="SITE:PATH")
@add_moving_options
@add_packing_options
@add_following_options
def push_command(common: Common, local: str, target: str, **options: Any) -> int | None:
    """Send files to a site; nothing is deleted without --delete.

    The contents of a folder go into PATH; a file goes to exactly that name, or into PATH when it ends in a
    slash. What is there already is not sent again. Every file is hashed at both ends before it gets its name.
    """
    following = take_following(options)
    if following is None:
        return move(common, "push", local, target, options)
    return follow(common, local, target, following, options)


@command(
    "pull",
    resumes=True,
    examples=[
        ("hibali pull juwels:@scratch/results results", "Fetch a folder's contents."),
        ("hibali pull bucket:raw/scan.nii.gz ./", "Fetch one file into the current folder."),
    ],
)
@click.argument("source", metavar="SITE:PATH")
@click.argument("local")
@add_moving_options
def pull_command(common: Common, source: str, local: str, **options: Any) -> int | None:
    """Fetch files from a site; nothing is deleted without --delete.

    The contents of a folder go into LOCAL; a file goes to exactly that name, or into LOCAL when it ends in a
    slash. What is here already is not fetched again. Every file is hashed at both ends before it gets its name.
    """
    return move(common, "pull", source, local, options)


@command(
    "sync",
    resumes=True,
    examples=[
        ("hibali sync juwels:@scratch/data bucket:data", "From one site to another, through this machine."),
        ("hibali sync --direct juwels:data jureca:data", "From one ssh site straight to another."),
        (
            "hibali sync --delete --max-delete 100 data juwels:data",
            "Make the target the same, within a limit.",
        ),
    ],
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--direct",
    is_flag=True,
    help="From one ssh site straight to another, by the first one's own ssh.",
)
@add_moving_options
@add_packing_options
def sync_command(common: Common, source: str, target: str, **options: Any) -> int | None:
    """Make TO hold what FROM holds; nothing is deleted without --delete.

    Either side may be a local path or SITE:PATH. Bytes between two sites pass through this machine and are not
    kept here, but for --direct.
    """
    return move(common, "sync", source, target, options)


@command(
    "plan",
    examples=[
        ("hibali plan --delete data juwels:@scratch/data -o data.plan", "Keep a plan to look at."),
        ("hibali apply data.plan", "Carry out exactly that plan."),
        ("hibali plan data juwels:@scratch/data", "Only print it."),
    ],
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write the plan to FILE (JSON lines) and print a summary.",
)
@click.option("--detailed-exit-code", is_flag=True, help="Exit 10 when there are changes.")
@add_planning_options
def plan_command(
    common: Common,
    source: str,
    target: str,
    *,
    output: str | None,
    detailed_exit_code: bool,
    **options: Any,
) -> int | None:
    """Plan what `sync` would do, without doing it; with -o it is kept for `apply`.

    Without -o every action is printed, as --dry-run does. The options are those of `sync`, and they are kept in
    the plan: what --delete and --max-delete allowed here is what `apply` may do.
    """
    from hibali.locations import read_location, read_target
    from hibali_cli.handlers.transfer import show_summary
    from hibali_cli.progress import listening
    from transfers.operation import plan_only
    from transfers.planner import TransferPlan
    from transfers.request import Request

    settings = common.settings()
    recorded = take_recorded(options)
    ends = read_location(source, settings), read_target(target, settings)
    request = Request("plan", *ends, rules_of(options), recorded=recorded)

    def show(found: TransferPlan) -> None:
        if output is None:
            show_plan(common, found)
        else:
            show_summary(common, found, output)

    with listening(common, f"plan {source} {target}", ends_at_plan=True) as on_event:
        found = plan_only(request, show, on_event, save=None if output is None else Path(output))
    return planned_exit(found, target, detailed=detailed_exit_code)


@command(
    "apply",
    resumes=True,
    examples=[
        ("hibali apply data.plan", "Carry out a plan that `hibali plan` wrote."),
        ("hibali apply -n data.plan", "See what of it is still to be done, and whether it still holds."),
        (
            "hibali apply theirs.plan data juwels:@scratch/data",
            "Carry out a plan of another person, after reading it.",
        ),
    ],
)
@click.argument("file", metavar="FILE")
@click.argument("ends", nargs=-1, metavar="[FROM TO]")
@add_applying_options
def apply_command(
    common: Common,
    file: str,
    ends: tuple[str, ...],
    *,
    backup_dir: str | None,
    dry_run: bool,
    detailed_exit_code: bool,
    bwlimit: int | None,
    push_to: tuple[str, ...],
    no_save: bool,
) -> int | None:
    """Carry out exactly a saved plan, or refuse it.

    Both sides are looked at again first: when a file of the plan has changed since, nothing is done and the exit
    is 8. A plan that was cut or edited is refused. The same line again does the rest of a plan that was
    interrupted.

    A plan that was not signed in this account's state folder, that belongs to another account or that other accounts
    can write to is refused, unless FROM and TO, the ends of the plan, are named on the line.
    """
    from hibali.errors import UsageError
    from hibali.locations import read_location, read_target
    from transfers.plan_reader import check_trust, read_plan
    from transfers.request import Request

    if len(ends) not in {0, 2}:
        raise UsageError("usage", "FROM and TO are named together", hint="See: hibali apply --help")
    settings = common.settings()
    named = [read_location(text, settings) for text in ends]
    saved = read_plan(Path(file))
    with closing(saved.planned):
        header = saved.header
        source, target = (
            read_location(os.fsdecode(place.text), settings, literal=True)
            for place in (header.source, header.target)
        )
        doubts = check_trust(saved, (source, target), named, Path(file))
        if doubts:
            common.output.warn(f"{file}: {doubts}. Carried out because both of its ends were named.")
        common.output.say(f"{source.text} to {target.text}, as planned at {header.at}")
        backup = None if backup_dir is None else read_target(backup_dir, settings)
        saving = saving_of(push_to, no_save=no_save)
        request = Request("apply", source, target, header.rules, saved, backup, bwlimit or 0, saving=saving)
        return carry_out(common, request, dry_run=dry_run, detailed=detailed_exit_code)
