"""One place that is reached when it is first needed and kept: its store, its folders one by one, and files of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

from hibali.errors import HibaliError, NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location, check_writable
from hibali.retry import growing_intervals, pause
from hibali.sites import local_site
from hibali.text import printable
from transfers.entry import Entry, Kind
from transfers.going_on import is_lost
from transfers.guarded import check_guarded
from transfers.places import open_store
from transfers.plan import unholdable
from transfers.shelving import Shelving, StoresWhole
from transfers.single import SingleSource
from transfers.store import Lock, Store, unsafe_component

_Result = TypeVar("_Result")

_LOCKED_SECONDS = 60.0  # somebody else's file in the same folder is through by then, unless it is a large one


class KeptPlace:
    """Paths are relative bytes. Methods raise errors of the hibali family."""

    def __init__(self, location: Location, tell: Listener = ignore) -> None:
        """`tell` hears what is worth telling, from any thread."""
        self.location = location
        self.tell = tell
        self._there: Store | None = None
        self._here: Store | None = None
        self._lent: list[Store] = []
        self._whole: StoresWhole | Literal[False] | None = False  # False: not looked at yet
        self._checked = False

    def close(self) -> None:
        """Let go of all connections; safe to call twice."""
        self._give_back()
        kept, self._there, self._here = [self._there, self._here], None, None
        self._whole = False
        for store in kept:
            if store is not None:
                with suppress(HibaliError):
                    store.close()

    def ask(self, act: Callable[[], _Result]) -> _Result:
        """Call `act`, once more where a connection from before broke; after any failure nobody knows what its other end still does."""
        kept = self._there is not None
        try:
            return act()
        except TryLaterError as problem:
            self.close()
            if not (kept and is_lost(problem)):
                raise
        except BaseException:
            self.close()
            raise
        try:
            return act()
        except BaseException:
            self.close()
            raise

    def store(self) -> Store:
        """The place's store."""
        if self._there is None:
            self._there = open_store(self.location, tell=self.tell)
        return self._there

    def whole(self) -> StoresWhole | None:
        """The same, where it handles single small files without a lock; found out once, as every request needs it."""
        if self._whole is False:
            store = self.store()
            self._whole = store if isinstance(store, StoresWhole) else None
        return self._whole

    def writable(self) -> Store:
        """The same, where the configuration lets it be written to."""
        store = self.store()
        if not self._checked:
            check_writable(self.location)
            if not store.facts.writable:
                raise RefusedError("read-only-site", "this site can only be read", about=self.location.text)
            check_guarded(self.location, store.where, self.tell)
            self._checked = True
        return store

    def find(self, path: bytes) -> Entry | None:
        """What stands at a path of a place that is there: a disk that is not mounted says nothing of what is on it."""
        reason = unsafe_component(path)
        if reason:
            raise self._unsafe(path, reason)
        store, whole = self.store(), self.whole()
        find = store.stat if whole is None else whole.find_whole
        found = find(path)
        if found is None and store.facts.folders and find(b"") is None:
            raise NotFoundError(
                "no-such-place",
                "the place itself is not there, so nothing is known of what it holds",
                about=self.location.text,
                hint="Is something not mounted there? `git annex enableremote` makes it anew.",
            )
        return found

    def find_file(self, path: bytes) -> Entry:
        """The file that stands there."""
        found = self.find(path)
        if found is None or found.kind is not Kind.FILE:
            raise NotFoundError("no-such-file", "there is no such content", about=self.location.text)
        return found

    def check_holdable(self, path: bytes) -> None:
        """Raise `RefusedError` for a name that the place cannot hold or hibali keeps for itself."""
        reason = unholdable(path, self.writable().facts)
        if reason or b".hibali" in path.split(b"/"):
            raise self._unsafe(path, reason or "it is a name that hibali keeps for itself")

    def _unsafe(self, path: bytes, reason: str) -> RefusedError:
        message = f"the place cannot hold the name {printable(path)}: {reason}"
        return RefusedError("unsafe-name", message, about=self.location.text)

    @contextmanager
    def shelf(self, folder: bytes) -> Iterator[tuple[Store, bytes]]:
        """A store for files of that folder, and the folder's path in it with a slash behind, or b"". Nothing is locked."""
        store = self.writable()
        try:
            if isinstance(store, Shelving):
                shelf, below = store.shelf(folder)
                yield shelf, below + b"/" if below else b""
                return
            place = self.location
            for part in folder.split(b"/") if folder else ():
                place = place.child(part)
            self._lent.append(open_store(place, tell=self.tell))
            yield self._lent[-1], b""
        finally:
            self._give_back()

    def _give_back(self) -> None:
        while self._lent:
            with suppress(HibaliError):
                self._lent.pop().close()

    @contextmanager
    def locked_shelf(self, folder: bytes) -> Iterator[tuple[Store, bytes]]:
        """The same, made where it is missing and held against others of us."""
        with self.shelf(folder) as (store, below):
            lock = _lock(store)
            try:
                yield store, below
            finally:
                lock.release()

    def source(self, file: Path, shown: bytes) -> SingleSource:
        """A file of this machine, read by an agent that hashes it on the way."""
        real = os.fsencode(os.path.realpath(file))
        folder, _, name = real.rpartition(b"/")
        if self._here is None:
            self._here = open_store(Location(local_site(), "/", "/", slash=True))
        assert isinstance(self._here, Shelving)
        source = SingleSource(self._here.shelf(folder.lstrip(b"/"))[0], name, shown)
        if source.entry().kind is not Kind.FILE:
            raise UsageError("not-a-file", "this is no regular file", about=printable(real))
        return source


def _lock(store: Store) -> Lock:
    """The lock of one folder, waited for a while; others are at work in others."""
    pauses = growing_intervals(0.1, 2.0)
    until = time.monotonic() + _LOCKED_SECONDS
    while True:
        try:
            return store.lock("annex", make=True)
        except TryLaterError as problem:
            if problem.code != "locked" or time.monotonic() > until:
                raise
        pause(pauses.next_pause())
