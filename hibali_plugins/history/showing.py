"""Query the ledger and show the history of operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hibali.amounts import format_duration, format_size
from hibali.errors import HibaliError, UsageError
from hibali.locations import Location, parse_location, read_location
from hibali.text import counted, path_fields, path_from_fields, printable
from hibali.unreadable import collect_unreadable, raise_unreadable
from hibali_cli.cells import id_cell, time_cell
from hibali_cli.fields import write_list
from hibali_cli.options import Common
from hibali_cli.output import Cell
from transfers.history.index import (
    OperationDetails,
    compact,
    read_details,
    read_latest,
    read_operations,
    read_operations_at,
)
from transfers.history.operations import FileChange, Filter, Move, Operation, OperationRoot, Result, moves_of

_MOST_LINES = 40  # for people, unless they say how many
_MOST_FAILURES = 20


def list_history(common: Common, **options: Any) -> int | None:
    """List the operations that match the filters, or the transfers of one file or folder."""
    chosen = Filter(
        site=options["site_name"],
        schedule=options["schedule"],
        results=[Result(word) for word in options["results"]],
        since=_seconds(options["since"]),
        until=_seconds(options["until"]),
    )
    if options["path"] is not None:
        if options["fields"] is not None:
            raise UsageError(
                "usage", "--fields cannot be used with --path", hint="See: hibali history --help"
            )
        return _list_moves(common, options["path"], chosen, options["last"])
    text = options["fields"] is None and not common.json
    with collect_unreadable() as unreadable:
        found, count = read_latest(chosen, options["last"] or (_MOST_LINES if text else None))
    if options["fields"] is not None:
        records = (operation_fields(each) for each in found)
        write_list(common, "operation", records, options["fields"])
    elif common.json:
        for each in found:
            common.output.record("operation", operation_fields(each))
    else:
        _print_operations(common, found, 0 if options["last"] else count)
    raise_unreadable(unreadable)
    if common.json and options["fields"] is None:
        common.output.record("end", {"count": len(found), "exit": 0})
    return None


def _print_operations(common: Common, found: Sequence[Operation], count: int) -> None:
    """Print a table; `count` is the number of all, if that is to be said."""
    common.output.table(
        ["operation", "began", "what", "from", "to", "result", "files", "size", "proof", "schedule"],
        [_row(each) for each in found],
    )
    if not found:
        common.output.info("No such operations. To transfer a folder: hibali push FOLDER SITE:FOLDER")
    if len(found) < count:
        common.output.info(
            f"Shown are the latest {len(found)} of {counted(count, 'operation')}. To show all: --last {count}"
        )


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


def _row(each: Operation) -> tuple[Cell, ...]:
    return (
        id_cell(each.id),
        time_cell(each.began, _clock(each.began)),
        each.operation,
        each.source,
        each.target,
        _describe_result(each),
        each.amount[0],
        format_size(each.amount[1]) if each.amount[1] else None,
        each.proof_moved,
        each.schedule,
    )


def _describe_result(each: Operation) -> str:
    result = each.result()
    code = (each.stopped or {}).get("code")
    return f"{result} ({code})" if code else str(result)


def _clock(began: str) -> str:
    return f"{began[:10]} {began[11:16]}"


def operation_fields(each: Operation) -> dict[str, Any]:
    """Return the fields of a line of kind `operation`."""
    receipt, stopped = each.receipt or {}, each.stopped or {}
    counts = ("files", "bytes", "files_moved", "bytes_moved", "files_kept", "files_deleted", "files_failed")
    return {
        "id": each.id,
        "operation": each.operation,
        "began": each.began,
        "source": each.source,
        "target": each.target,
        "sites": sorted(each.sites),
        "schedule": each.schedule,
        "result": str(each.result()),
        "exit_code": each.exit,
        **{name: receipt.get(name) for name in counts},
        "proof_moved": receipt.get("proof_moved"),
        "proof_tree": receipt.get("proof_tree"),
        "seconds": receipt.get("seconds"),
        "code": stopped.get("code"),
        "message": stopped.get("message"),
        "about": stopped.get("about"),
        "hint": stopped.get("hint"),
    }


def _list_moves(common: Common, path: str, chosen: Filter, last: int | None) -> int | None:
    roots = _places_of(read_location(path, common.settings()))
    with collect_unreadable() as unreadable:
        operations = chosen.choose(read_operations_at(roots, unplaced=True))
        found = list(moves_of(roots, _with_typed_places(common, operations)))
    found = found[-last:] if last else found
    if common.json:
        for each in found:
            common.output.record("move", _move_fields(each))
    else:
        _print_moves(common, path, found)
    raise_unreadable(unreadable)
    if common.json:
        common.output.record("end", {"count": len(found), "exit": 0})
    return None


def _print_moves(common: Common, path: str, found: Sequence[Move]) -> None:
    if not found:
        common.output.info(f"The ledger has no record of {path}.")
        return
    common.output.table(
        ["when", "what", "operation", "from", "to", "files", "size", "failed", "proof"],
        [
            (
                time_cell(each.operation.began, _clock(each.operation.began)),
                str(each.change),
                id_cell(each.operation.id),
                each.operation.source,
                each.operation.target,
                each.files,
                format_size(each.bytes),
                each.failed or None,
                each.proof,
            )
            for each in found
        ],
    )
    moved = [each for each in found if each.files and each.change in {FileChange.ARRIVED, FileChange.LEFT}]
    if moved:
        common.output.info(_describe_verification(moved[-1]))


def _describe_verification(move: Move) -> str:
    labels = {"": "its verification is not recorded", "none": "not verified"}
    verification = labels.get(move.proof or "", f"verified by {move.proof}")
    digest = f", sha256 {move.sha256}" if move.sha256 else ""
    return f"Last transferred on {_clock(move.operation.began)} UTC, {verification}{digest}."


def _move_fields(each: Move) -> dict[str, Any]:
    return {
        "id": each.operation.id,
        "operation": each.operation.operation,
        "began": each.operation.began,
        "source": each.operation.source,
        "target": each.operation.target,
        "schedule": each.operation.schedule,
        "way": str(each.change),
        "files": each.files,
        "bytes": each.bytes,
        "files_failed": each.failed,
        "proof": each.proof,
        "sha256": each.sha256,
    }


def _places_of(location: Location) -> list[OperationRoot]:
    return [OperationRoot(location.site.name, location.bucket, location.raw)]


def _with_typed_places(common: Common, operations: Iterable[Operation]) -> Iterable[Operation]:
    """Yield each operation with its resolved and its typed locations: only the site can expand some paths."""
    sites = common.settings().sites
    for each in operations:
        yield each
        typed = parse_typed(each.target, sites)
        if typed is not None and each.place is not None and typed.path[:1] in {b"~", b"$"}:
            yield replace(each, place=typed, origin=None)


def parse_typed(text: str, sites: Any) -> OperationRoot | None:
    """Parse a typed location by the current settings; None for a local path, and for a removed site."""
    try:
        location = parse_location(text, sites, b"/", literal=True) if ":" in text.partition("/")[0] else None
    except HibaliError:
        return None
    return None if location is None else OperationRoot(location.site.name, location.bucket, location.raw)


def show_operation(common: Common, identifier: str) -> int | None:
    """Show one operation in full."""
    details = read_details(identifier)
    if common.json:
        common.output.record("story", _story_fields(details), flush=True)
        return None
    common.output.pairs(_story_pairs(details))
    for note in details.notes:
        common.output.text(f"note     {printable(note)}\n")
    if details.failures:
        common.output.text("\n")
        shown = details.failures if common.output.verbose else details.failures[:_MOST_FAILURES]
        common.output.table(
            ["failed", "code", "why"],
            [(path_from_fields(each), str(each.get("code")), str(each.get("message"))) for each in shown],
        )
        if len(shown) < details.files["failed"]:
            common.output.info(
                f"{len(shown)} of {counted(details.files['failed'], 'failure')} shown. To show up to 1000: -v"
            )
    return None


def _story_fields(details: OperationDetails) -> dict[str, Any]:
    failures = [
        {**path_fields(path_from_fields(each)), "code": each.get("code"), "message": each.get("message")}
        for each in details.failures
    ]
    return {
        **operation_fields(details.operation),
        "firing": details.operation.firing,
        "receipt": None if details.operation.receipt is None else dict(details.operation.receipt),
        "on_record": dict(details.files),
        "proofs": dict(details.verifications),
        "failures": failures,
        "notes": details.notes,
        "compacted": details.operation.compacted,
    }


def _story_pairs(details: OperationDetails) -> dict[str, Cell]:
    each = details.operation
    receipt, stopped = each.receipt or {}, each.stopped or {}
    pairs: dict[str, Cell] = {
        "operation": each.id,
        "what": each.operation,
        "from": each.source,
        "to": each.target,
        "began": f"{_clock(each.began)} UTC",
        "schedule": f"{each.schedule}, firing {each.firing}" if each.schedule else None,
        "result": str(each.result()),
        "exit code": each.exit,
    }
    if each.receipt is not None:
        pairs |= {
            "took": format_duration(each.seconds) if each.seconds >= 1 else f"{each.seconds:.2f} s",
            "files": f"{receipt.get('files')}, {format_size(each.number('bytes'))}",
            "moved": f"{receipt.get('files_moved')}, {format_size(each.number('bytes_moved'))}"
            + (f", {format_size(round(details.rate))}/s" if details.rate else ""),
            "kept, deleted, failed": ", ".join(
                str(receipt.get(name)) for name in ("files_kept", "files_deleted", "files_failed")
            ),
            "proof": ", ".join(
                f"{count} by {verification}" for verification, count in details.verifications.most_common()
            )
            or receipt.get("proof_moved")
            or receipt.get("proof_tree"),
            "logins": receipt.get("logins"),
            "transferred by": receipt.get("mover"),
            "limited by": receipt.get("limited_by"),
        }
    if stopped:
        pairs |= {
            "stopped by": f"{stopped.get('about')}: {stopped.get('message')} ({stopped.get('code')})",
            "hint": stopped.get("hint") or None,
        }
    if each.compacted:
        pairs["note"] = "compacted: lines that newer operations replaced were removed"
    return {name: value for name, value in pairs.items() if value is not None}


def compact_history(common: Common, before: int, *, dry_run: bool) -> int | None:
    """Shorten old journals, and show the saved space."""
    journals = lines = size = 0
    for each in compact(read_operations(), before / 1e9, dry=dry_run):
        journals += 1
        lines += each.lines
        size += each.bytes
        common.output.detail(f"{each.operation.id}: {counted(each.lines, 'line')}, {format_size(each.bytes)}")
    if common.json:
        fields = {"journals": journals, "lines": lines, "bytes": size, "dry_run": dry_run}
        common.output.record("compacted", fields, flush=True)
        return None
    verb = "would be removed" if dry_run else "removed"
    common.output.info(
        f"{counted(lines, 'line')} ({format_size(size)}) {verb} from {counted(journals, 'journal')}; all receipts are kept."
    )
    return None
