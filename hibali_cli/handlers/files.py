"""List, read, measure and remove files at a site: `ls`, `cat`, `du`, `mkdir` and `rm`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import click

from hibali.amounts import format_size
from hibali.errors import Exit, IncompleteError, NotFoundError, RefusedError, UsageError
from hibali.events import Listener
from hibali.locations import listing_hint, read_key, read_location, read_target
from hibali.text import counted, path_fields
from hibali_cli.failure import print_error
from hibali_cli.fields import write_list
from hibali_cli.options import Common
from hibali_cli.output import is_terminal
from hibali_cli.path_completion import SeenNames
from hibali_cli.progress import listening
from hibali_cli.records import action_fields, entry_fields, event_fields, moment
from transfers.history.journal import Receipt
from transfers.inventory import Usage, usages
from transfers.listing import list_entries
from transfers.model.entry import Entry, Kind
from transfers.model.patterns import read_wildcards
from transfers.model.rules import DeleteLimit, read_delete_limit
from transfers.model.units import ListingIncompleteError
from transfers.planning.actions import Action, Verb
from transfers.planning.planner import incomplete
from transfers.remove import (
    RemovalPlan,
    SeveralRemovals,
    plan_removal,
    plan_several,
    remove,
    remove_several,
)
from transfers.single_files import contents, make_place
from transfers.sources import several_removals
from transfers.stores.open_store import open_store

_WIDTH, _EXACT_WIDTH = 8, 15  # columns of a size


def _size(size: int, *, exact: bool) -> str:
    return str(size) if exact else format_size(size)


def list_place(
    common: Common, location: str, *, recursive: bool, long: bool, exact: bool, fields: Sequence[str] | None
) -> int:
    """Print the entries and return the exit code."""
    root = read_location(location, common.settings())
    seen = SeenNames(root.site.name, root.text.partition(":")[2])

    def entries(on_event: Listener) -> Iterator[Entry]:
        for entry in list_entries(root, on_event, recursive=recursive):
            seen.add(entry)
            yield entry

    with listening(common, f"ls {root.text}") as on_event:
        found = entries(on_event)
        if not write_list(common, "entry", map(entry_fields, found), fields, exact=exact):
            for entry in found:
                _print_entry(common, entry, long=long, exact=exact)
    if not root.typed_local and read_wildcards(root) is None:
        seen.save(unless=root.name)
    return 0


def _print_entry(common: Common, entry: Entry, *, long: bool, exact: bool) -> None:
    name = entry.path + (b"/" if entry.kind is Kind.FOLDER else b"")
    if entry.kind is Kind.LINK:
        name += b" -> " + entry.link
    size = "-" if entry.kind is not Kind.FILE else _size(entry.size, exact=exact)
    width = _EXACT_WIDTH if exact else _WIDTH
    details = f"{size:>{width}}  {(moment(entry.mtime_ns) or '-')[:19]:<19}  " if long or exact else ""
    common.output.line(details.encode() + name)


def write_contents(common: Common, locations: Sequence[str], *, recall: bool, exact_key: bool) -> int:
    """Write the bytes of the files to stdout, one after the other; returns the exit code."""
    if common.json:
        raise UsageError(
            "usage", "--json is not possible: the output is the bytes of a file", subject="--json"
        )
    settings = common.settings()
    read = read_key if exact_key else read_location
    files = [read(location, settings) for location in locations]
    if is_terminal(sys.stdout):
        common = replace(common, progress=False)  # the output itself shows the progress
    for file in files:
        with (
            listening(common, f"cat {file.text}") as on_event,
            closing(contents(file, recall=recall, on_event=on_event)) as pieces,
        ):
            for piece in pieces:
                common.output.raw(piece)
    return 0


def show_usage(common: Common, location: str, depth: int, *, exact: bool) -> int:
    """Print the counts of a tree, and of its folders down to `depth`; returns the exit code.

    With `exact` sizes are in bytes.
    """
    root = read_location(location, common.settings())
    problem: IncompleteError | None = None

    def listed(on_event: Listener) -> Iterator[Entry]:
        nonlocal problem
        with closing(open_store(root, on_event=on_event)) as store:
            found = store.stat()
            if found is None:
                raise NotFoundError(
                    "no-such-place",
                    "no file or folder with that name exists",
                    subject=root.text,
                    hint=listing_hint(root.text),
                )
            if found.kind is not Kind.FOLDER:
                yield found._replace(path=root.name)
                return
            try:
                yield from store.list()
            except ListingIncompleteError as incomplete:
                problem = incomplete

    count = 0
    with listening(common, f"du {root.text}") as on_event:
        for usage in usages(listed(on_event), depth):
            count += 1
            _print_usage(common, usage, exact=exact)
    if problem is not None:
        raise problem  # the counts are incomplete
    if common.json:
        common.output.record("end", {"count": count, "exit": 0})
    return 0


def _print_usage(common: Common, usage: Usage, *, exact: bool) -> None:
    if common.json:
        counts = {"files": usage.files, "folders": usage.folders, "bytes": usage.bytes}
        common.output.record("usage", {**path_fields(usage.path), **counts})
    else:
        size = _size(usage.bytes, exact=exact)
        counts_text = f"{size:>{_EXACT_WIDTH if exact else _WIDTH}}  {usage.files:>10}  "
        common.output.line(counts_text.encode() + (usage.path or b"."))


def make_folder(common: Common, location: str) -> int:
    """Create a folder and report the result; returns the exit code."""
    folder = read_target(location, common.settings())
    with listening(common, f"mkdir {folder.text}") as on_event:
        made = make_place(folder, on_event)
    if common.json:
        common.output.record("folder", {"location": folder.text, "made": made})
    elif made:
        common.output.info(f"{folder.text} was created.")
    return 0


def remove_path(
    common: Common,
    location: Sequence[str],
    *,
    recursive: bool,
    yes: bool,
    max_delete: str | None,
    dry_run: bool,
    exact_key: bool,
) -> int:
    """Remove the named files and folders, or only show what would be removed; returns the exit code."""
    settings = common.settings()
    read = read_key if exact_key else read_target
    targets = [read(each, settings) for each in location]
    limit = read_delete_limit(max_delete) if max_delete else DeleteLimit() if yes else None
    sites, title = tuple(settings.sites.values()), f"rm {targets[0].text}"
    with listening(common, title, records=not dry_run, ends_at_plan=dry_run or not yes) as on_event:
        request = several_removals(targets, recursive, limit, sites, on_event)
        subject = request.text if isinstance(request, SeveralRemovals) else targets[0].text

        def confirm(plan: RemovalPlan) -> None:
            if (plan.folder or isinstance(request, SeveralRemovals)) and not yes:
                _confirm(common, subject, plan)

        def show(plan: RemovalPlan) -> None:
            _show(common, targets[0].name, plan)

        if isinstance(request, SeveralRemovals):
            if dry_run:
                plan_several(request, show, on_event)
                return 0
            receipt = remove_several(request, confirm, on_event)
        elif dry_run:
            plan_removal(request, show, on_event)
            return 0
        else:
            receipt = remove(request, confirm, on_event)
    _show_receipt(common, receipt)
    return int(receipt.exit)


def _counts(plan: RemovalPlan) -> str:
    folders = plan.folders + plan.folder
    among = f" in {counted(folders, 'folder')}" if folders else ""
    return f"{counted(plan.files, 'file')} ({format_size(plan.bytes)}){among}"


def _confirm(common: Common, subject: str, plan: RemovalPlan) -> None:
    """Prompt for confirmation; raises `RefusedError` without it."""
    hint = f"To check first, add --dry-run. To confirm, add --yes --max-delete {plan.files}"
    if common.json or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise RefusedError(
            "unconfirmed",
            f"{_counts(plan)} would be removed, which needs confirmation, but this is not a terminal",
            subject=subject,
            hint=hint,
        )
    common.output.info(f"{subject}: {_counts(plan)}")
    if not click.confirm("Remove all of it?", err=True):
        raise RefusedError("unconfirmed", "nothing was removed", subject=subject)


def _show(common: Common, name: bytes, plan: RemovalPlan) -> None:
    """Print every name that would be removed, one per line."""
    because = f"below {name.decode('utf-8', 'replace')}" if plan.folder else "named"
    for entry in plan.entries:
        action = Action(Verb.DELETE, entry, because)
        if common.json:
            common.output.record("action", action_fields(action))
        else:
            slash = b"/" if entry.kind is Kind.FOLDER else b""
            size = f"  ({format_size(entry.size)})" if entry.kind is Kind.FILE else ""
            common.output.line(f"{action.verb:<8}".encode() + entry.path + slash + size.encode())
    if common.json:
        common.output.record("planned", event_fields(plan.planned()))
        common.output.record("end", {"count": plan.files + plan.folders + 1, "exit": 0})
    else:
        common.output.info(f"{_counts(plan)} would be removed. Nothing was changed.")


def _show_receipt(common: Common, receipt: Receipt) -> None:
    if common.json:
        common.output.record("receipt", receipt.to_record())
        return
    common.output.info(
        f"{counted(receipt.files_deleted, 'file')} removed; {receipt.seconds:.1f} s; {receipt.id}"
    )
    if receipt.exit is Exit.INCOMPLETE:
        print_error(incomplete(receipt.target, receipt.files_failed))
