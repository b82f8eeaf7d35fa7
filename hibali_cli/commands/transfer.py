"""`hibali push`, `pull`, `sync`, `plan` and `apply`."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hibali.amounts import format_size
from hibali.errors import Exit, IncompleteError, UsageError, exit_of_interruption
from hibali.text import counted
from hibali_cli.command import command
from hibali_cli.failure import print_error
from hibali_cli.options import OUTPUT_FILE, Common
from hibali_cli.records import event_fields
from hibali_cli.transfer_options import (
    add_applying_options,
    add_following_options,
    add_moving_options,
    add_packing_options,
    add_planning_options,
    pop_follow_options,
    pop_recorded,
    request_of,
    rules_of,
    saving_of,
)

# modules of transfers are imported where they are used, for start-up time
if TYPE_CHECKING:
    from transfers.follow.watcher import FollowOptions
    from transfers.journal import Receipt
    from transfers.planner import TransferPlan
    from transfers.request import Request


@command(
    "push",
    resumes=True,
    examples=[
        ("hibali push data juwels:@scratch/data", "Send a folder to a site."),
        ("hibali push -n --delete data juwels:@scratch/data", "Show what would be sent and deleted."),
        ("hibali push scan.nii.gz bucket:raw/", "Send one file to a bucket."),
        (
            "hibali push --pack study juwels:@archive/study",
            "Send thousands of small files as a few tar files; pull restores the files.",
        ),
        (
            "hibali push --follow --append '*.log' --until run7/FINISHED run7 juwels:@scratch/run7",
            "Send the output of a simulation while it is written.",
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
    slash. Files that exist there unchanged are not sent again. Every file is hashed at both ends before it gets its name.
    """
    following = pop_follow_options(options)
    if following is None:
        return _move(common, "push", local, target, options)
    return _follow(common, local, target, following, options)


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
    slash. Files that exist here unchanged are not fetched again. Every file is hashed at both ends before it gets its name.
    """
    return _move(common, "pull", source, local, options)


@command(
    "sync",
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
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--direct",
    is_flag=True,
    help="Copy directly from one ssh site to another, with the ssh of the first.",
)
@add_moving_options
@add_packing_options
def sync_command(common: Common, source: str, target: str, **options: Any) -> int | None:
    """Copy files from FROM to TO; nothing is deleted without --delete.

    Either side may be a local path or SITE:PATH. Bytes between two sites pass through this machine without being
    stored here, except with --direct.
    """
    return _move(common, "sync", source, target, options)


@command(
    "plan",
    examples=[
        ("hibali plan --delete data juwels:@scratch/data -o data.plan", "Save a plan for review."),
        ("hibali apply data.plan", "Execute exactly that plan."),
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
    """Plan what `sync` would do, without doing it; -o saves the plan for `apply`.

    Without -o every action is printed, as with --dry-run. The options are those of `sync`, and they are saved in
    the plan: `apply` may delete only what --delete and --max-delete allowed here.
    """
    from hibali.locations import read_location, read_target
    from hibali_cli.progress import listening
    from transfers.operation import plan_only
    from transfers.request import Request

    settings = common.settings()
    recorded = pop_recorded(options)
    ends = read_location(source, settings), read_target(target, settings)
    request = Request("plan", *ends, rules_of(options), recorded=recorded)

    def show(found: TransferPlan) -> None:
        if output is None:
            _show_plan(common, found)
        else:
            _show_summary(common, found, output)

    with listening(common, f"plan {source} {target}", ends_at_plan=True) as on_event:
        found = plan_only(request, show, on_event, save=None if output is None else Path(output))
    return _plan_exit(found, target, detailed=detailed_exit_code)


@command(
    "apply",
    resumes=True,
    examples=[
        ("hibali apply data.plan", "Execute a plan that `hibali plan` saved."),
        ("hibali apply -n data.plan", "Check what is left to do, and whether the plan is still valid."),
        (
            "hibali apply theirs.plan data juwels:@scratch/data",
            "Execute a plan of another person, after reading it.",
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
    """Execute exactly a saved plan, or refuse it.

    Both sides are listed again first: if a file of the plan has changed since, nothing is done and the exit code
    is 8. A plan that was truncated or edited is refused. Run the same command again to resume a plan that was
    interrupted.

    A plan that was not signed in this account's state folder, that belongs to another account or that other accounts
    can write to is refused, unless FROM and TO, the source and the target of the plan, are given, too.
    """
    from hibali.locations import read_location, read_target
    from transfers.plan_file import check_trust, read_plan
    from transfers.request import Request

    if len(ends) not in {0, 2}:
        raise UsageError("usage", "FROM and TO are given together", hint="See: hibali apply --help")
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
            common.output.warn(f"{file}: {doubts}. Executed because its source and target were given.")
        common.output.info(f"{source.text} to {target.text}, as planned at {header.at}")
        backup = None if backup_dir is None else read_target(backup_dir, settings)
        saving = saving_of(push_to, no_save=no_save)
        request = Request("apply", source, target, header.rules, saved, backup, bwlimit or 0, saving=saving)
        return _execute(common, request, dry_run=dry_run, detailed=detailed_exit_code)


def _move(common: Common, operation: str, source: str, target: str, options: dict[str, Any]) -> int:
    """Execute one push, pull or sync, or print its plan; return the exit code."""
    dry_run, detailed = options.pop("dry_run"), options.pop("detailed_exit_code")
    request = request_of(common, operation, source, target, options)
    return _execute(common, request, dry_run=dry_run, detailed=detailed)


def _execute(common: Common, request: Request, *, dry_run: bool, detailed: bool) -> int:
    """Execute a request and print the receipt, or only print the plan; return the exit code."""
    from hibali_cli.progress import listening
    from transfers.operation import plan_only, synchronise

    title = f"{request.operation} {request.source.text} {request.target.text}"
    with listening(common, title, records=not dry_run, ends_at_plan=dry_run) as on_event:
        if dry_run:
            found = plan_only(request, lambda plan: _show_plan(common, plan), on_event)
            return _plan_exit(found, request.target.text, detailed=detailed)
        try:
            receipt = synchronise(request, on_event)
        except KeyboardInterrupt:
            common.output.info(on_event.tally.safe())
            raise
    _show_receipt(common, receipt)
    return int(receipt.exit)


def _plan_exit(found: TransferPlan, target: str, *, detailed: bool) -> int:
    """Return the exit code of a dry run: 6, with a message, where a part of the source or the target could not be read."""
    if found.unlisted:
        print_error(_unread(found, target))
        return int(Exit.INCOMPLETE)
    return int(Exit.CHANGES) if detailed and found.changes else int(Exit.DONE)


def _unread(found: TransferPlan, target: str) -> IncompleteError:
    """Return the error for a plan from incomplete listings."""
    return IncompleteError(
        "plan-incomplete",
        f"the plan is not complete: {counted(len(found.unlisted), 'name')} could not be read; see above",
        subject=target,
        hint="Make these names readable, or exclude them; then plan again.",
    )


def _follow(
    common: Common, source: str, target: str, following: FollowOptions, options: dict[str, Any]
) -> int:
    """Follow the source, and print the receipt also of an interruption; return the exit code."""
    from hibali_cli.progress import listening
    from transfers.follow.operation import follow as follow_source

    del options["dry_run"], options["detailed_exit_code"]
    request = request_of(common, "push", source, target, options)
    with listening(common, f"push {source} {target}") as on_event:
        receipt, interruption = follow_source(request, following, on_event)
    if interruption is not None:
        receipt.exit = exit_of_interruption(interruption)
    _show_receipt(common, receipt)
    return int(receipt.exit)


def _show_plan(common: Common, plan: TransferPlan) -> None:
    """Print every action on a line of its own."""
    from hibali_cli.records import action_fields

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
    _show_counts(common, plan, count)


def _show_summary(common: Common, plan: TransferPlan, saved: str) -> None:
    """Print the names and bytes for each reason, as a table or as records of kind `reason`."""
    names: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for actions in (plan.moves, plan.adjustments, plan.deletions):
        for action in actions:
            reason = (str(action.verb), action.because)
            names[reason] += 1
            sizes[reason] += action.entry.size
    rows = [(*reason, names[reason], sizes[reason]) for reason in sorted(names)]
    columns = ("action", "because", "names", "bytes")
    if common.json:
        for row in rows:
            common.output.record("reason", dict(zip(columns, row, strict=True)))
    elif rows:
        common.output.table(columns, rows)
    _show_counts(common, plan, len(rows), f" Read {saved}, then run: hibali apply {saved}")


def _show_counts(common: Common, plan: TransferPlan, lines: int, hint: str = "") -> None:
    """Print the counts of a plan; `lines` is the number of records above them."""
    planned = plan.planned()
    if common.json:
        common.output.record("planned", event_fields(planned))
        code = Exit.INCOMPLETE if plan.unlisted else Exit.DONE
        common.output.record("end", {"count": lines + 1, "exit": int(code)})
        return
    common.output.info(
        f"Would move {planned.files_to_move} of {counted(planned.files, 'file')} ({format_size(planned.bytes_to_move)}),"
        f" keep {planned.files_kept} and delete {planned.files_to_delete}. Nothing was changed.{hint}"
    )


_VERIFIED = {
    "digest": ", verified by sha256 at both ends",
    "recorded": ", verified by recorded sha256",
    "claimed": ", verified by a checksum that the server reported",
    "size": ", verified by size only",
    "none": ", not verified",
}


def _show_receipt(common: Common, receipt: Receipt) -> None:
    """Print the receipt: a record for programs, one sentence for people."""
    if common.json:
        common.output.record("receipt", receipt.to_record())
        return
    verified = _VERIFIED[receipt.proof_moved] if receipt.proof_moved else ""
    packed = f" in {counted(receipt.packs_made, 'pack')}" if receipt.packs_made else ""
    others = (
        (receipt.files_adjusted, "adjusted"),
        (receipt.files_linked, "linked"),
        (receipt.files_deleted, "deleted"),
    )
    rest = "".join(f", {count} {word}" for count, word in others if count)
    common.output.info(
        f"{counted(receipt.files_moved, 'file')} ({format_size(receipt.bytes_moved)}) moved{packed}{verified};"
        f" {receipt.files_kept} kept{rest}; {receipt.seconds:.1f} s; {receipt.id}"
    )
    if receipt.exit is Exit.INCOMPLETE:
        from transfers.planner import incomplete

        print_error(incomplete(receipt.target, receipt.files_failed))
