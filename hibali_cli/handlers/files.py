"""List, read and measure files at a site, and make folders: `ls`, `cat`, `du` and `mkdir`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from hibali.errors import IncompleteError, NotFoundError
from hibali.events import Listener
from hibali.locations import Location
from hibali.text import path_fields
from hibali_cli.options import Common
from hibali_cli.output import is_terminal
from hibali_cli.path_completion import SeenNames
from hibali_cli.progress import listening
from hibali_cli.records import entry_fields, moment
from transfers.entry import Entry, Kind
from transfers.inventory import Usage, usages
from transfers.packs.view import Seeing
from transfers.single_files import contents, make_place
from transfers.stores.base import ListingIncompleteError
from transfers.stores.open_store import open_store


def list_place(common: Common, location: Location, *, recursive: bool, long: bool) -> int:
    """Print the entries and return the exit code."""
    count = 0
    seen = SeenNames(location.site.name, location.text.partition(":")[2])
    with listening(common, f"ls {location.text}") as on_event:
        for entry in _entries(location, on_event, recursive=recursive):
            count += 1
            seen.take(entry)
            if common.json:
                common.output.record("entry", entry_fields(entry))
            else:
                _print_entry(common, entry, long=long)
    if not location.typed_local:
        seen.keep(unless=location.name)
    if common.json:
        common.output.record("end", {"count": count, "exit": 0})
    return 0


def _print_entry(common: Common, entry: Entry, *, long: bool) -> None:
    name = entry.path + (b"/" if entry.kind is Kind.FOLDER else b"")
    if entry.kind is Kind.LINK:
        name += b" -> " + entry.link
    details = f"{entry.size:>15}  {(moment(entry.mtime_ns) or '-')[:19]:<19}  " if long else ""
    common.output.line(details.encode() + name)


def _entries(location: Location, on_event: Listener, *, recursive: bool) -> Iterator[Entry]:
    store, found = Seeing(lambda at: open_store(at, on_event=on_event)).find(location)
    with closing(store):
        if found is None:
            raise NotFoundError("no-such-place", "there is nothing there", subject=location.text)
        if found.kind is Kind.FOLDER:
            yield from store.list(shallow=not recursive)
        else:
            yield found._replace(path=location.name)


def write_contents(common: Common, locations: Sequence[Location], *, recall: bool) -> int:
    """Write the bytes of the files to stdout, one behind the other; returns the exit code."""
    if is_terminal(sys.stdout):
        common = replace(common, progress=False)  # the bytes themselves are the progress
    for location in locations:
        with (
            listening(common, f"cat {location.text}") as on_event,
            closing(contents(location, recall=recall, on_event=on_event)) as pieces,
        ):
            for piece in pieces:
                common.output.raw(piece)
    return 0


def show_usage(common: Common, location: Location, depth: int) -> int:
    """Print the counts of a tree, and of its folders down to `depth`; returns the exit code."""
    problem: IncompleteError | None = None

    def listed(on_event: Listener) -> Iterator[Entry]:
        nonlocal problem
        with closing(open_store(location, on_event=on_event)) as store:
            found = store.stat()
            if found is None:
                raise NotFoundError("no-such-place", "there is nothing there", subject=location.text)
            if found.kind is not Kind.FOLDER:
                yield found._replace(path=location.name)
                return
            try:
                yield from store.list()
            except ListingIncompleteError as incomplete:
                problem = incomplete

    count = 0
    with listening(common, f"du {location.text}") as on_event:
        for usage in usages(listed(on_event), depth):
            count += 1
            _print_usage(common, usage)
    if problem is not None:
        raise problem  # what was counted is not all
    if common.json:
        common.output.record("end", {"count": count, "exit": 0})
    return 0


def _print_usage(common: Common, usage: Usage) -> None:
    if common.json:
        counts = {"files": usage.files, "folders": usage.folders, "bytes": usage.bytes}
        common.output.record("usage", {**path_fields(usage.path), **counts})
    else:
        common.output.line(f"{usage.bytes:>15}  {usage.files:>10}  ".encode() + (usage.path or b"."))


def make_folder(common: Common, location: Location) -> int:
    """Make it, and say what came of it; returns the exit code."""
    with listening(common, f"mkdir {location.text}") as on_event:
        made = make_place(location, on_event)
    if common.json:
        common.output.record("folder", {"location": location.text, "made": made})
    return 0
