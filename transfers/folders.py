"""Making a folder at a place."""

from __future__ import annotations

from contextlib import closing

from hibali.errors import IncompleteError, RefusedError
from hibali.events import Listener, Noted, ignore
from hibali.locations import Location, check_writable
from transfers.entry import Kind
from transfers.guarded import check_guarded
from transfers.places import open_store

_IN_THE_WAY = frozenset({"in-the-way", "not-a-folder"})


def make_place(location: Location, tell: Listener = ignore) -> bool:
    """Make the folder and those above it; whether it was not there before. Where there are no folders, that is told.

    Raises `RefusedError` where something else stands in the way, or nothing may be written there.
    """
    check_writable(location)
    with closing(open_store(location, tell=tell)) as store:
        if not store.facts.writable:
            raise RefusedError("read-only-site", "this site can only be read", about=location.text)
        found = store.stat()
        if not store.facts.folders:
            tell(Noted(f"{location.text}: an object store has no folders, so there is nothing to make"))
            return False
        if found is not None and found.kind is Kind.FOLDER:
            return False
        if found is not None:
            raise _in_the_way(location)
        check_guarded(location, store.where, tell)
        try:
            store.make_root()
        except (IncompleteError, RefusedError) as problem:
            if problem.code not in _IN_THE_WAY:
                raise
            raise _in_the_way(location) from None
        return True


def _in_the_way(location: Location) -> RefusedError:
    return RefusedError(
        "in-the-way",
        "something that is no folder stands there, or above it",
        about=location.text,
        hint="Give it another name.",
    )
