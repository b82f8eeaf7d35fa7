"""Show how a local folder differs from the place it was last pushed to or pulled from."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from hibali.amounts import format_duration
from hibali.errors import Exit, IncompleteError, NotFoundError, UsageError
from hibali.locations import Location, read_location
from hibali.plugins import if_offered
from hibali.text import counted, path_fields, printable
from hibali_cli.failure import print_error
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_plugins.status.comparing import (
    Change,
    Difference,
    FolderStatus,
    compare_here,
    compare_there,
    sorted_differences,
)
from transfers.history.index import read_operations_at
from transfers.history.last_transfer import (
    NOT_BY_FOLDER,
    LastTransfer,
    find_last_transfer,
    place_there,
    read_known_files,
    spellings,
)
from transfers.model.rules import Rules

_MOST_NAMED = 10


def show_folder(
    common: Common, folder: str, *, checksum: bool, remote: bool, detailed_exit_code: bool
) -> int | None:
    """Compare a folder with its last transfer and show the differences; return the exit code."""
    settings = common.settings()
    location = _local_folder(read_location(folder, settings))
    folders = spellings(location)
    operations = read_operations_at(folders)
    last = find_last_transfer(folders, operations)
    if last is None:
        raise NotFoundError(
            "never-transferred",
            "the ledger has no transfer of this folder",
            subject=folder,
            hint=f"{NOT_BY_FOLDER} To compare with it: hibali plan FOLDER SITE:PATH."
            + if_offered("history", " To list the transfers of this machine: hibali history"),
        )
    known = read_known_files(last, read_operations_at([last.here]))
    with listening(common, f"status {folder}") as on_event:
        status = compare_here(location, last, known, checksum=checksum, on_event=on_event)
        if remote:
            there = read_location(place_there(last), settings, literal=True)
            compare_there(location, there, last, known, status, on_event)
    code = (
        Exit.INCOMPLETE
        if status.problems
        else Exit.CHANGES
        if detailed_exit_code and status.differs
        else Exit.DONE
    )
    if common.json:
        _write_records(common, folder, last, status, code)
    else:
        _write_text(common, folder, last, status, known.rules)
    if status.problems:
        print_error(_unread(folder, status))
    return int(code)


def _local_folder(location: Location) -> Location:
    """Return the location. Raises `UsageError` for one at a site, `NotFoundError` for no folder."""
    if not location.typed_local:
        raise UsageError(
            "not-a-local-folder",
            "this is a location at a site; status compares a folder of this machine",
            subject=location.text,
            hint=f"To compare a location with its recorded digests: hibali verify {shlex.quote(location.text)}",
        )
    if not Path(os.fsdecode(location.raw)).is_dir():
        raise NotFoundError("no-such-folder", "this folder does not exist", subject=location.text)
    return location


# ---- for users


def _write_text(common: Common, folder: str, last: LastTransfer, status: FolderStatus, rules: Rules) -> None:
    lines: list[str | bytes] = [_headline(last), ""]
    lines += _groups("here", status.here.values(), everything=common.output.verbose)
    if status.there is not None:
        lines += _groups("there", status.there.values(), everything=common.output.verbose)
    lines.append(_summary(status))
    if status.differs:
        lines.append(_advice(folder, last, status, rules))
    for line in lines:
        common.output.line(line)


def _headline(last: LastTransfer) -> str:
    operation = last.operation
    way = "Last pushed to" if last.pushed else "Last pulled from"
    age = format_duration(max(0.0, time.time() - operation.moment))
    failed = operation.number("files_failed")
    incomplete = f", {counted(failed, 'file')} failed" if failed else ""
    at = f"{datetime.fromtimestamp(operation.moment, UTC):%Y-%m-%d %H:%M} UTC"
    return f"{way} {place_there(last)} {age} ago, {at}{incomplete}; {operation.id}"


def _groups(where: str, differences: Iterable[Difference], *, everything: bool) -> Iterator[bytes | str]:
    """Yield a title and the names for each kind of change, followed by an empty line."""
    ordered = list(sorted_differences(differences))
    for change in Change:
        group = [each for each in ordered if each.change is change]
        if group:
            yield f"{change.capitalize()} {where}:"
            shown = group if everything else group[:_MOST_NAMED]
            yield from (b"  " + each.path for each in shown)
            if len(shown) < len(group):
                yield f"  ... and {len(group) - len(shown)} more; -v shows all"
            yield ""


def _summary(status: FolderStatus) -> str:
    parts = [_counts("here", status.here.values())]
    if status.there is not None:
        parts.append(_counts("there", status.there.values()))
    parts.append(f"{status.unchanged} unchanged")
    if status.unrecorded:
        parts.append(f"{len(status.unrecorded)} not changed since, but without a record")
    return "; ".join(parts) + "."


def _counts(where: str, differences: Iterable[Difference]) -> str:
    found = ", ".join(f"{count} {change}" for change, count in _numbers(differences).items() if count)
    return f"{found} {where}" if found else f"nothing changed {where}"


def _advice(folder: str, last: LastTransfer, status: FolderStatus, rules: Rules) -> str:
    """Return the command that makes both places the same again, with the patterns of the last transfer."""
    patterns = {"--include": rules.include, "--exclude": rules.exclude}
    options = [word for name, values in patterns.items() for value in values for word in (name, value)]
    there = place_there(last)
    ends = (folder, there) if last.pushed else (there, folder)
    way = "push" if last.pushed else "pull"
    command = "sync" if last.operation.operation == "sync" else way
    line = shlex.join(["hibali", command, *options, *ends])
    if last.pushed:
        left = any(each.change is Change.REMOVED for each in status.here.values())
        note = " (what was removed here stays there; --delete would delete it there, too)" if left else ""
        return f"To bring {there} up to date: {line}{note}"
    edited = any(each.change is Change.MODIFIED for each in status.here.values())
    note = " (it replaces the files that were modified here)" if edited else ""
    return f"To fetch what was modified or removed here, or changed there: {line}{note}"


# ---- for programs


def _write_records(common: Common, folder: str, last: LastTransfer, status: FolderStatus, code: Exit) -> None:
    for where, differences in (("here", status.here), ("there", status.there or {})):
        for each in sorted_differences(differences.values()):
            fields = {**path_fields(each.path), "change": str(each.change), "where": where, "size": each.size}
            common.output.record("changed", fields)
    fields = {
        **path_fields(os.fsencode(folder), "folder"),
        "place": place_there(last),
        "direction": "pushed" if last.pushed else "pulled",
        "operation": last.operation.id,
        "began": last.operation.began,
        "here": _numbers(status.here.values()),
        "there": None if status.there is None else _numbers(status.there.values()),
        "unchanged": status.unchanged,
        "unrecorded": len(status.unrecorded),
        "unread": len(status.problems),
        "exit": int(code),
    }
    common.output.record("folder-status", fields, flush=True)


def _numbers(differences: Iterable[Difference]) -> dict[str, int]:
    counts = Counter(str(each.change) for each in differences)
    return {str(change): counts[change] for change in Change}


def _unread(folder: str, status: FolderStatus) -> IncompleteError:
    path, problem = status.problems[0]
    more = f", and {len(status.problems) - 1} more" if len(status.problems) > 1 else ""
    return IncompleteError(
        "status-incomplete",
        f"some names could not be read: {printable(path)}: {problem.message}{more}",
        subject=folder,
        hint="Make these names readable; then run the command again.",
    )
