"""Printing a listing while it streams in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from hibali.errors import NotFoundError
from hibali.events import Listener
from hibali.locations import Location
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_cli.records import entry_fields, moment
from hibali_cli.seen_places import Seen
from transfers.entry import Entry, Kind
from transfers.packs.view import Seeing
from transfers.stores.open_store import open_store


def list_place(common: Common, location: Location, *, recursive: bool, long: bool) -> int:
    """Print the entries and return the exit code."""
    count = 0
    seen = Seen(location.site.name, location.text.partition(":")[2])
    with listening(common, f"ls {location.text}") as tell:
        for entry in _entries(location, tell, recursive=recursive):
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


def _entries(location: Location, tell: Listener, *, recursive: bool) -> Iterator[Entry]:
    store, found = Seeing(lambda at: open_store(at, tell=tell)).find(location)
    with closing(store):
        if found is None:
            raise NotFoundError("no-such-place", "there is nothing there", about=location.text)
        if found.kind is Kind.FOLDER:
            yield from store.list(shallow=not recursive)
        else:
            yield found._replace(path=location.name)
