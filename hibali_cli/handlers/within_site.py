"""Copy and move files within one site: `cp` and `mv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hibali.amounts import format_size
from hibali.errors import Exit, UsageError
from hibali.locations import read_key, read_location, read_target
from hibali.text import counted, path_fields
from hibali_api.transfer_request import transfer_request
from hibali_cli.failure import print_error
from hibali_cli.handlers.transfers import execute_sources, show_receipt, with_names
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_cli.records import event_fields
from transfers.history.journal import Receipt
from transfers.move import MoveRequest, check_one_site, copy_within, move, plan_move
from transfers.planning.planner import incomplete
from transfers.remove import RemovalPlan


def copy_files(common: Common, source: Sequence[str], target: str, **options: Any) -> int:
    """Copy files within a site, or print the plan; return the exit code."""
    settings = common.settings()
    if options["exact_key"] and len(source) > 1:
        raise UsageError("usage", "--exact-key takes one source", subject=source[1])
    read = read_key if options["exact_key"] else read_location
    for each in source:
        check_one_site("cp", read(each, settings), read_target(target, settings))
    request = copy_within(transfer_request("cp", source[0], target, with_names(options), settings))
    return execute_sources(common, request, source, options)


def move_path(common: Common, source: str, target: str, *, dry_run: bool) -> int:
    """Move a file or folder within a site, or only print what would be moved; return the exit code."""
    settings = common.settings()
    ends = read_target(source, settings), read_target(target, settings)
    check_one_site("mv", *ends)
    request = MoveRequest(*ends, tuple(settings.sites.values()))
    title = f"mv {ends[0].text} {ends[1].text}"
    with listening(common, title, records=not dry_run, ends_at_plan=dry_run) as on_event:
        if dry_run:
            plan_move(request, lambda plan, renames: _show(common, request, plan, renames=renames), on_event)
            return 0
        receipts = move(request, on_event)
    for receipt in receipts:
        _show_receipt(common, receipt)
    return int(receipts[-1].exit)


def _show(common: Common, request: MoveRequest, plan: RemovalPlan, *, renames: bool) -> None:
    """Print what would be moved, and how."""
    verb, because = ("rename", "the store can") if renames else ("move", "copied, verified, then removed")
    if common.json:
        kind = "folder" if plan.folder else "file"
        fields = {**path_fields(request.source.name), "type": kind, "size": plan.bytes, "because": because}
        common.output.record("action", {"action": verb, **fields})
        common.output.record("planned", event_fields(plan.planned()))
        common.output.record("end", {"count": 2, "exit": 0})
        return
    size = f"{counted(plan.files, 'file')}, {format_size(plan.bytes)}"
    way = "renamed" if renames else "copied within the site, verified and then removed"
    common.output.line(
        f"{verb:<8}{request.source.text} -> {request.target.text}  ({size})".encode(
            "utf-8", "surrogateescape"
        )
    )
    common.output.info(f"Would be {way}. Nothing was changed.")


def _show_receipt(common: Common, receipt: Receipt) -> None:
    if common.json or (receipt.operation == "mv" and receipt.mover != "rename"):
        show_receipt(common, receipt)
        return
    done = " renamed" if receipt.mover == "rename" else f": {receipt.files_deleted} removed"
    size = format_size(receipt.bytes)
    common.output.info(
        f"{counted(receipt.files, 'file')} ({size}){done}; {receipt.seconds:.1f} s; {receipt.id}"
    )
    if receipt.exit is Exit.INCOMPLETE:
        print_error(incomplete(receipt.target, receipt.files_failed))
