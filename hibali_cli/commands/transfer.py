"""`hibali push`, `pull`, `sync`, `plan` and `apply`."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hibali.errors import Exit, IncompleteError, UsageError
from hibali_cli.command import command
from hibali_cli.failure import tell_people
from hibali_cli.interruption import OutOfTime, Terminated
from hibali_cli.options import OUTPUT_FILE, Common
from hibali_cli.records import event_fields
from hibali_cli.transfer_options import (
    add_applying_options,
    add_following_options,
    add_moving_options,
    add_packing_options,
    add_planning_options,
    request_of,
    rules_of,
    saving_of,
    take_following,
    take_recorded,
)

# modules of transfers are imported where they are used, for start-up time
if TYPE_CHECKING:
    from transfers.follow.watcher import Following
    from transfers.journal import Receipt
    from transfers.planner import TransferPlan
    from transfers.request import Request


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
    from hibali_cli.progress import listening
    from transfers.operation import plan_only
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

    with listening(common, f"plan {source} {target}", ends_at_plan=True) as tell:
        found = plan_only(request, show, tell, save=None if output is None else Path(output))
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


def move(common: Common, operation: str, source: str, target: str, options: dict[str, Any]) -> int:
    """Carry out one push, pull or sync and tell its receipt; returns the exit code."""
    dry_run, detailed = options.pop("dry_run"), options.pop("detailed_exit_code")
    request = request_of(common, operation, source, target, options)
    return carry_out(common, request, dry_run=dry_run, detailed=detailed)


def carry_out(common: Common, request: Request, *, dry_run: bool, detailed: bool) -> int:
    """Do what was asked and tell the receipt, or only show the plan; returns the exit code."""
    from hibali_cli.progress import listening
    from transfers.operation import plan_only, synchronise

    title = f"{request.operation} {request.source.text} {request.target.text}"
    with listening(common, title, records=not dry_run, ends_at_plan=dry_run) as tell:
        if dry_run:
            found = plan_only(request, lambda plan: show_plan(common, plan), tell)
            return planned_exit(found, request.target.text, detailed=detailed)
        try:
            receipt = synchronise(request, tell)
        except KeyboardInterrupt:
            common.output.say(tell.tally.safe())
            raise
    tell_receipt(common, receipt)
    return int(receipt.exit)


def planned_exit(found: TransferPlan, target: str, *, detailed: bool) -> int:
    """The exit code of a dry run: 6, said aloud, where a part of the source or the target could not be read."""
    if found.unlisted:
        tell_people(unread(found, target))
        return int(Exit.INCOMPLETE)
    return int(Exit.CHANGES) if detailed and found.changes else int(Exit.DONE)


def unread(found: TransferPlan, target: str) -> IncompleteError:
    """The error for a plan that does not know all there is."""
    names = len(found.unlisted)
    return IncompleteError(
        "plan-incomplete",
        f"the plan is not complete: {names} {'name' if names == 1 else 'names'} could not be read; see above",
        about=target,
        hint="Correct what is named above, then plan again.",
    )


def follow(common: Common, source: str, target: str, following: Following, options: dict[str, Any]) -> int:
    """Follow the source, and tell the receipt however that ended; returns the exit code."""
    from hibali_cli.progress import listening
    from transfers.follow.operation import follow as follow_source

    del options["dry_run"], options["detailed_exit_code"]
    request = request_of(common, "push", source, target, options)
    with listening(common, f"push {source} {target}") as tell:
        receipt, interruption = follow_source(request, following, tell)
    if interruption is not None:
        receipt.exit = _exit_of(interruption)
    tell_receipt(common, receipt)
    return int(receipt.exit)


def _exit_of(interruption: KeyboardInterrupt) -> Exit:
    if isinstance(interruption, OutOfTime):
        return Exit.TRY_LATER
    return Exit.TERMINATED if isinstance(interruption, Terminated) else Exit.INTERRUPTED


def show_plan(common: Common, plan: TransferPlan) -> None:
    """Every action on stdout, a line each."""
    from hibali_cli.records import action_fields, event_fields

    count = 0
    for actions in (plan.moves, plan.adjustments, plan.deletions):
        for action in actions:
            count += 1
            if common.json:
                common.output.record("action", action_fields(action))
            else:
                common.output.line(
                    f"{action.verb:<8}".encode() + action.entry.path + f"  ({action.because})".encode()
                )
    planned = plan.planned()
    if common.json:
        common.output.record("planned", event_fields(planned))
        common.output.record(
            "end", {"count": count + 1, "exit": int(Exit.INCOMPLETE if plan.unlisted else Exit.DONE)}
        )
    else:
        common.output.say(
            f"{planned.files_to_move} of {planned.files} files ({planned.bytes_to_move} bytes) would move,"
            f" {planned.files_kept} are kept, {planned.files_to_delete} would be deleted. Nothing was changed."
        )


def tell_receipt(common: Common, receipt: Receipt) -> None:
    """The receipt as the last line: a record for programs, one sentence for people."""
    if common.json:
        common.output.record("receipt", receipt.to_record())
        return
    proof = f", proven by {receipt.proof_moved}" if receipt.proof_moved else ""
    adjusted = f", {receipt.files_adjusted} adjusted" if receipt.files_adjusted else ""
    packed = f" into {receipt.packs_made} packs" if receipt.packs_made else ""
    linked = f", {receipt.files_linked} linked" if receipt.files_linked else ""
    deleted = f", {receipt.files_deleted} deleted" if receipt.files_deleted else ""
    common.output.say(
        f"{receipt.files_moved} files and {receipt.bytes_moved} bytes moved{packed}{proof}; {receipt.files_kept} files kept{adjusted}{linked}{deleted};"
        f" {receipt.seconds:.1f} s; {receipt.id}"
    )
    if receipt.exit is Exit.INCOMPLETE:
        from transfers.planner import incomplete

        tell_people(incomplete(receipt.target, receipt.files_failed))


def show_summary(common: Common, plan: TransferPlan, saved: str) -> None:
    """A table for people, records of kind `reason` for programs; never a line for each name."""
    names: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for actions in (plan.moves, plan.adjustments, plan.deletions):
        for action in actions:
            reason = (str(action.verb), action.because)
            names[reason] += 1
            sizes[reason] += action.entry.size
    planned = plan.planned()
    if common.json:
        for reason in sorted(names):
            verb, because = reason
            fields = {"action": verb, "because": because, "names": names[reason], "bytes": sizes[reason]}
            common.output.record("reason", fields)
        common.output.record("planned", event_fields(planned))
        code = Exit.INCOMPLETE if plan.unlisted else Exit.DONE
        common.output.record("end", {"count": len(names) + 1, "exit": int(code)})
        return
    if names:
        rows = [(*reason, names[reason], sizes[reason]) for reason in sorted(names)]
        common.output.table(("action", "because", "names", "bytes"), rows)
    common.output.say(
        f"{planned.files_to_move} of {planned.files} files ({planned.bytes_to_move} bytes) to move,"
        f" {planned.files_kept} kept, {planned.files_to_delete} to delete. Nothing was changed."
        f" Look at {saved}, then: hibali apply {saved}"
    )
