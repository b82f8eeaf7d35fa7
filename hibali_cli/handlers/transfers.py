"""Make requests of the options of push, pull, sync, plan and apply, execute them, and show plans and receipts."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click

from hibali.amounts import format_size
from hibali.documents import missing_file
from hibali.errors import Exit, IncompleteError, UsageError
from hibali.locations import read_location
from hibali.system_errors import unreadable
from hibali.text import counted
from hibali_api.transfer_request import plan_request, saved_request, several_sources, transfer_request
from hibali_cli.failure import print_error
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_cli.records import action_fields, event_fields
from transfers.engine.operation import plan_only, synchronise
from transfers.engine.request import Request, check_target_is_last
from transfers.history.journal import Receipt, weak_verification
from transfers.model.entry import Kind
from transfers.model.patterns import has_wildcards
from transfers.model.rules import read_names
from transfers.planning.actions import Action, Verb
from transfers.planning.planner import TransferPlan, incomplete
from transfers.remote.one_session import kept_session


def with_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a command with the names that --files-from lists. Raises `NotFoundError` for a missing list."""
    listed, zero = options["files_from"], options["from0"]
    if listed is None:
        if zero:
            raise click.UsageError("-0/--from0 needs --files-from.")
        return dict(options)
    return {**options, "files_from": _names(listed, zero=zero)}


def _names(listed: str, *, zero: bool) -> frozenset[bytes]:

    try:
        content = sys.stdin.buffer.read() if listed == "-" else Path(listed).read_bytes()
    except FileNotFoundError:
        raise missing_file(listed, "the list of names") from None
    except OSError as problem:
        raise unreadable(problem, listed) from None
    return read_names(content, listed, separator=b"\0" if zero else b"\n")


def push(common: Common, local: Sequence[str], target: str, **options: Any) -> int:
    """Send files to a site; return the exit code."""
    return _move_files(common, "push", local, target, options)


def pull(common: Common, source: Sequence[str], local: str, **options: Any) -> int:
    """Fetch files from a site; return the exit code."""
    return _move_files(common, "pull", source, local, options)


def sync(common: Common, source: Sequence[str], target: str, **options: Any) -> int:
    """Copy files from one location to another; return the exit code."""
    return _move_files(common, "sync", source, target, options)


def make_plan(
    common: Common,
    source: str,
    target: str,
    *,
    output: str | None,
    detailed_exit_code: bool,
    **options: Any,
) -> int | None:
    """Print or save the plan of a transfer; return the exit code."""
    request = plan_request(source, target, with_names(options), common.settings())

    def show(found: TransferPlan) -> None:
        if output is None:
            _show_plan(common, found, detailed=detailed_exit_code)
        else:
            _show_summary(common, found, output, detailed=detailed_exit_code)

    with listening(common, f"plan {source} {target}", ends_at_plan=True) as on_event:
        found = plan_only(request, show, on_event, save=None if output is None else Path(output))
    return _plan_exit(found, target, detailed=detailed_exit_code)


def apply_plan(common: Common, file: str, ends: tuple[str, ...], **options: Any) -> int | None:
    """Execute a saved plan; return the exit code."""
    if len(ends) not in {0, 2}:
        raise UsageError("usage", "give both FROM and TO, or neither", hint="See: hibali apply --help")
    settings = common.settings()
    named = [read_location(text, settings) for text in ends]
    with saved_request(Path(file), named, options, settings, common.output.warn) as request:
        assert request.saved is not None
        planned = request.saved.header.at
        common.output.info(f"{request.source.text} to {request.target.text}, as planned at {planned}")
        return execute_request(common, request, options)


def _move_files(
    common: Common, operation: str, sources: Sequence[str], target: str, options: Mapping[str, Any]
) -> int:
    """Execute one push, pull or sync, or print its plan; return the exit code."""
    settings = common.settings()
    if len(sources) > 1:
        check_target_is_last(operation, [read_location(text, settings) for text in (*sources, target)])
    request = transfer_request(operation, sources[0], target, with_names(options), settings)
    return execute_sources(common, request, sources, options)


def execute_sources(
    common: Common, request: Request, sources: Sequence[str], options: Mapping[str, Any]
) -> int:
    """Execute a request with all of its sources, or print its plan; return the exit code."""
    with kept_session(request.source.site):
        if len(sources) > 1 or has_wildcards(request.source):
            with listening(common, f"{request.operation} {sources[0]}", ends_at_plan=True) as on_event:
                request = several_sources(request, sources, common.settings(), on_event)
        return execute_request(common, request, options)


def execute_request(common: Common, request: Request, options: Mapping[str, Any]) -> int:
    """Execute a request and print the receipt, or with --dry-run only print the plan; return the exit code."""
    if common.log_file is not None:
        from hibali_cli.log_file import check_log_apart  # start-up: only with a log

        check_log_apart(common.log_file, request)
    title = f"{request.operation} {request.source_text} {request.target.text}"
    dry_run, detailed = options["dry_run"], options["detailed_exit_code"]
    with listening(common, title, records=not dry_run, ends_at_plan=dry_run) as on_event:
        if dry_run:
            found = plan_only(request, lambda plan: _show_plan(common, plan, detailed=detailed), on_event)
            return _plan_exit(found, request.target.text, detailed=detailed)
        try:
            receipt = synchronise(request, on_event)
        except KeyboardInterrupt:
            common.output.info(on_event.tally.safe())
            raise
    show_receipt(common, receipt)
    return int(receipt.exit)


def _plan_exit(found: TransferPlan, target: str, *, detailed: bool) -> int:
    """Return the exit code of a dry run: 6, with a message, where a part of the source or the target could not be read."""
    if found.unlisted:
        print_error(_unread(found, target))
    return int(_plan_exit_code(found, detailed=detailed))


def _plan_exit_code(plan: TransferPlan, *, detailed: bool) -> Exit:
    if plan.unlisted:
        return Exit.INCOMPLETE
    return Exit.CHANGES if detailed and (plan.changes or plan.files_to_remove) else Exit.DONE


def _unread(found: TransferPlan, target: str) -> IncompleteError:
    """Return the error for a plan from incomplete listings."""
    return IncompleteError(
        "plan-incomplete",
        f"the plan is not complete: {counted(len(found.unlisted), 'name')} could not be read; see above",
        subject=target,
        hint="Make these names readable, or exclude them; then run the command again.",
    )


def _show_plan(common: Common, plan: TransferPlan, *, detailed: bool) -> None:
    """Print every action on a line of its own."""
    spools = plan.moves, plan.adjustments, plan.deletions
    actions = chain(*spools, plan.removals())
    if common.json:
        for action in actions:
            common.output.record("action", action_fields(action))
    else:
        common.output.lines(map(_action_line, actions))
    _show_counts(common, plan, sum(map(len, spools)) + plan.files_to_remove, detailed=detailed)


def _action_line(action: Action) -> bytes:
    size = f", {format_size(action.entry.size)}" if _has_size(action) else ""
    because = f"  ({action.because}{size})"
    former = action.entry.renamed_from + b" -> " if action.entry.renamed_from else b""
    return action.verb.ljust(8).encode() + former + action.entry.path + because.encode()


def _has_size(action: Action) -> bool:
    """Return whether bytes are sent or deleted."""
    return action.entry.kind is Kind.FILE and action.verb not in {Verb.ADJUST, Verb.LINK}


def _show_summary(common: Common, plan: TransferPlan, saved: str, *, detailed: bool) -> None:
    """Print the names and bytes for each reason, as a table or as records of kind `reason`."""
    names: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for actions in (plan.moves, plan.adjustments, plan.deletions):
        for action in actions:
            reason = (str(action.verb), action.because)
            names[reason] += 1
            sizes[reason] += action.entry.size
    rows = [(*reason, names[reason], sizes[reason]) for reason in sorted(names)]
    if common.json:
        for row in rows:
            common.output.record(
                "reason", dict(zip(("action", "because", "names", "bytes"), row, strict=True))
            )
    elif rows:
        shown = [(*row[:3], format_size(row[3])) for row in rows]
        common.output.table(("action", "because", "names", "size"), shown)
    _show_counts(common, plan, len(rows), f" Read {saved}, then run: hibali apply {saved}", detailed=detailed)


def _show_counts(common: Common, plan: TransferPlan, lines: int, hint: str = "", *, detailed: bool) -> None:
    """Print the counts of a plan; `lines` is the number of records above them."""
    planned = plan.planned()
    removed = ""
    if plan.kept is not None:
        removed = f" Would then remove {counted(plan.files_to_remove, 'file')} at the source."
    if common.json:
        common.output.record("planned", event_fields(planned))
        code = _plan_exit_code(plan, detailed=detailed)
        common.output.record("end", {"count": lines + 1, "exit": int(code)})
        return
    common.output.info(
        f"Would move {planned.files_to_move} of {counted(planned.files, 'file')} ({format_size(planned.bytes_to_move)}),"
        f" keep {planned.files_kept} and delete {planned.files_to_delete}.{removed}"
        f" Nothing was changed.{hint}"
    )


VERIFIED = {
    "digest": ", verified by sha256 at both ends",
    "recorded": ", verified by recorded sha256",
    "claimed": ", verified by a checksum that the server reported",
    "size": ", verified by size only",
    "none": ", not verified",
}


def show_receipt(common: Common, receipt: Receipt) -> None:
    """Print the receipt: a record for programs, one sentence for people."""
    if common.json:
        common.output.record("receipt", receipt.to_record())
        return
    verified = VERIFIED[receipt.proof_moved] if receipt.proof_moved else ""
    packed = f" in {counted(receipt.packs_made, 'pack')}" if receipt.packs_made else ""
    others = (
        (receipt.files_adjusted, "adjusted"),
        (receipt.files_linked, "linked"),
        (receipt.files_deleted, "deleted"),
        (receipt.files_removed, "removed at the source"),
    )
    rest = "".join(f", {count} {word}" for count, word in others if count)
    common.output.info(
        f"{counted(receipt.files_moved, 'file')} ({format_size(receipt.bytes_moved)}) moved{packed}{verified};"
        f" {receipt.files_kept} kept{rest}; {receipt.seconds:.1f} s; {receipt.id}"
    )
    if receipt.exit is Exit.INCOMPLETE and receipt.files_failed:
        print_error(incomplete(receipt.target, receipt.files_failed))
    elif receipt.exit is Exit.INCOMPLETE:
        hint = "Require less with --require-proof, or read them back with `verify`."
        print_error(weak_verification(receipt, hint))
