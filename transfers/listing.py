"""List what is at a place: a folder, a file itself, or the names that match wildcards."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

from hibali.errors import NotFoundError, RefusedError, UsageError
from hibali.events import Listener
from hibali.locations import Location, listing_hint
from transfers.model.entry import Entry, Kind
from transfers.model.patterns import Wildcards, has_wildcards, read_wildcards
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
                "no-such-place",
                "no file or folder with that name exists",
                subject=location.text,
                hint=listing_hint(location.text),
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
        raise _no_match(wildcards, subject)


def _no_match(wildcards: Wildcards, subject: str) -> NotFoundError:
    return NotFoundError(
        "no-match",
        "no name matches this pattern",
        subject=subject,
        hint=f"To see what exists: hibali ls {shlex.quote(wildcards.folder.text)}",
    )


MOST_MATCHES = 10_000


@dataclass(frozen=True, slots=True)
class Matches:
    """What matches wildcards: the folder before the first one, and the entries below it by their path, none inside another."""

    folder: Location
    entries: dict[bytes, Entry]


def find_matches(location: Location, on_event: Listener, *, recorded: bool = False) -> Matches | None:
    """Return what matches the wildcards in SITE:PATH; None without any, or if something has exactly this name.

    The shell has expanded those of a local path. With `recorded`, files match that are only on record, too.

    Raises:
        NotFoundError: nothing matches.
        UsageError: more than `MOST_MATCHES` names match.
        ListingIncompleteError: a folder in which names could match cannot be read.
    """
    wildcards = read_wildcards(location) if has_wildcards(location) else None
    if wildcards is None:
        return None
    store, found = ViewOpener(on_event, datasets=False).find(wildcards.folder)
    with closing(store):
        if found is not None and store.stat(wildcards.rest) is not None:
            return None
        matches: dict[bytes, Entry] = {}
        for entry in _candidates(store, wildcards, recorded=recorded) if found is not None else ():
            match = wildcards.match_of(entry)
            if match is not None and match.path not in matches and _exists(store, match):
                matches[match.path] = match
            if len(matches) > MOST_MATCHES:
                raise UsageError(
                    "too-many-matches",
                    f"more than {MOST_MATCHES:,} names match this pattern",
                    subject=location.text,
                    hint="Name the folder around them, with --include to select names.",
                )
    if not matches:
        raise _no_match(wildcards, location.text)
    return Matches(wildcards.folder, matches)


def _exists(store: Store, match: Entry) -> bool:
    """Return whether a match has contents; some servers still list a prefix whose last object was removed."""
    return store.facts.folders or match.kind is not Kind.FOLDER or store.stat(match.path) is not None


def _candidates(store: Store, wildcards: Wildcards, *, recorded: bool) -> Iterator[Entry]:
    """Yield the entries that may match; unreadable folders in which no name could match do not matter."""
    try:
        yield from store.list(shallow=not wildcards.deep)
    except ListingIncompleteError as problem:
        if any(wildcards.concerns(path) for path, _ in problem.unlisted):
            raise
    if recorded:
        from transfers.history.recorded_digests import recorded_digests  # start-up: only to verify

        for path in recorded_digests(wildcards.folder, store.root_path):
            yield Entry(path, Kind.FILE)
