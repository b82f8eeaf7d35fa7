"""List what is at a place: a folder, a file itself, or the names that match wildcards."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack

from hibali.errors import NotFoundError, RefusedError
from hibali.events import Listener
from hibali.locations import Location
from transfers.model.entry import Entry, Kind
from transfers.model.patterns import Wildcards, read_wildcards
from transfers.model.store import Store
from transfers.model.units import ListingIncompleteError
from transfers.stores.open_views import ViewOpener


def list_entries(location: Location, on_event: Listener, *, recursive: bool) -> Iterator[Entry]:
    """Yield the entries to list; a file or folder with exactly this name comes before its wildcards.

    Raises `NotFoundError` if nothing is there or matches, `ListingIncompleteError` after the readable part.
    """
    wildcards = read_wildcards(location)
    opener = ViewOpener(on_event, datasets=False)
    with ExitStack() as stack:
        store, found = opener.find(location if wildcards is None else wildcards.folder)
        stack.callback(store.close)
        if wildcards is not None and found is not None:
            if found.kind is Kind.FOLDER and store.stat(wildcards.rest) is None:
                yield from _matching(store, wildcards, location.text, recursive=recursive)
                return
            store, found = opener.find(location)
            stack.callback(store.close)
        if found is None:
            raise NotFoundError(
                "no-such-place", "no file or folder with that name exists", subject=location.text
            )
        if found.kind is Kind.FOLDER:
            yield from store.list(shallow=not recursive)
        elif location.slash:
            raise RefusedError("not-a-folder", "this is a file", subject=location.text)
        else:
            yield found._replace(path=location.name)


def _matching(store: Store, wildcards: Wildcards, subject: str, *, recursive: bool) -> Iterator[Entry]:
    count = 0
    try:
        for entry in store.list(shallow=not (recursive or wildcards.deep)):
            if wildcards.matches(entry, below=recursive):
                count += 1
                yield entry
    except ListingIncompleteError as problem:
        problem.raise_selected(lambda entry: wildcards.matches(entry, below=recursive))
    if not count:
        raise NotFoundError(
            "no-match",
            "no name matches this pattern",
            subject=subject,
            hint=f"To see what exists: hibali ls {shlex.quote(wildcards.folder.text)}",
        )
