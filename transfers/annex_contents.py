"""Contents that git-annex keeps at a place: stored, found, given back and removed one by one, over one connection."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.events import Carrying, Event, Listener, ignore
from hibali.locations import Location, check_writable
from hibali.retry import growing_intervals, pause
from hibali.sites import local_site
from hibali.text import printable
from transfers.entry import Entry, Kind, weakest
from transfers.going_on import is_lost
from transfers.guarded import check_guarded
from transfers.movers.stream import StreamMover
from transfers.places import open_store
from transfers.plan import unholdable
from transfers.shelving import Shelving
from transfers.single import SingleSource
from transfers.store import Item, Landed, Lock, Store, unsafe_component
from transfers.taking import take_file

Progress = Callable[[int], None]
_Result = TypeVar("_Result")

_LOCKED_SECONDS = 60.0  # somebody else's file in the same folder is through by then, unless it is a large one
_JOURNAL = b".hibali/journal"


class AnnexContents:
    """One place. It is reached when it is first needed, and once more where the kept connection broke meanwhile.

    Paths are relative bytes. Every method raises errors of the hibali family; nothing is left half-done under a final name.
    """

    def __init__(self, location: Location, tell: Listener = ignore) -> None:
        """`tell` hears what is worth telling, from any thread."""
        self._location = location
        self._tell = tell
        self._there: Store | None = None
        self._here: Store | None = None
        self._lent: list[Store] = []
        self._checked = False

    def make_place(self) -> None:
        """Make the folder of the place, or see that it can be reached."""

        def make() -> None:
            store = self._writable()
            store.make_root()
            store.stat()

        self._ask(make)

    def is_present(self, path: bytes, size: int | None = None) -> bool:
        """Whether a file stands there, of that size where one is given. Raises `NotFoundError` where the place itself is gone."""
        return self._ask(lambda: self._present(path, size))

    def store(self, path: bytes, file: Path, progress: Progress) -> None:
        """Land a file of this machine there, hashed at both ends, going on where an earlier call was cut off."""
        self._ask(lambda: self._store(path, file, progress))

    def retrieve(self, path: bytes, file: Path, progress: Progress) -> None:
        """Write what stands there into `file`, going on behind what is in it already."""
        self._ask(lambda: self._retrieve(path, file, progress))

    def remove(self, path: bytes) -> None:
        """Remove a file; an absent one is done."""
        self._ask(lambda: self._remove(path))

    def remove_folder(self, path: bytes) -> None:
        """Remove a folder of empty folders; one that still holds somebody's files stays, an absent one is done."""
        self._ask(lambda: self._remove_folder(path))

    def close(self) -> None:
        """Let go of all connections; safe to call twice."""
        lent, self._lent = self._lent, []
        kept, self._there, self._here = [self._there, self._here], None, None
        for store in (*lent, *kept):
            if store is not None:
                with suppress(HibaliError):
                    store.close()

    def _ask(self, act: Callable[[], _Result]) -> _Result:
        """Once more where a connection from before broke; after any failure nobody knows what its other end still does."""
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

    def _open(self) -> Store:
        if self._there is None:
            self._there = open_store(self._location, tell=self._tell)
        return self._there

    def _writable(self) -> Store:
        store = self._open()
        if not self._checked:
            check_writable(self._location)
            if not store.facts.writable:
                raise RefusedError("read-only-site", "this site can only be read", about=self._location.text)
            check_guarded(self._location, store.where, self._tell)
            self._checked = True
        return store

    def _find(self, path: bytes) -> Entry | None:
        """What stands at a path of a place that is there: a disk that is not mounted says nothing of what is on it."""
        reason = unsafe_component(path)
        if reason:
            raise self._unsafe(path, reason)
        store = self._open()
        found = store.stat(path)
        if found is None and store.facts.folders and store.stat() is None:
            raise NotFoundError(
                "no-such-place",
                "the place itself is not there, so nothing is known of what it holds",
                about=self._location.text,
                hint="Is something not mounted there? `git annex enableremote` makes it anew.",
            )
        return found

    def _present(self, path: bytes, size: int | None) -> bool:
        found = self._find(path)
        return found is not None and found.kind is Kind.FILE and (size is None or found.size == size)

    def _unsafe(self, path: bytes, reason: str) -> RefusedError:
        about = self._location.text
        return RefusedError(
            "unsafe-name", f"the place cannot hold the name {printable(path)}: {reason}", about=about
        )

    def _shelf(self, folder: bytes) -> tuple[Store, bytes]:
        """A store in which files of that folder are written, and the folder's path in it."""
        store = self._writable()
        if isinstance(store, Shelving):
            return store.shelf(folder)
        place = self._location
        for part in folder.split(b"/") if folder else ():
            place = place.child(part)
        self._lent.append(open_store(place, tell=self._tell))
        return self._lent[-1], b""

    def _give_back(self) -> None:
        while self._lent:
            self._lent.pop().close()

    def _target(self, path: bytes) -> tuple[Store, bytes]:
        """The store that takes a file of that path, and its path there; raises `RefusedError` for one it cannot hold."""
        reason = unholdable(path, self._writable().facts)
        if reason or b".hibali" in path.split(b"/"):
            raise self._unsafe(path, reason or "it is a name that hibali keeps for itself")
        folder, _, name = path.rpartition(b"/")
        store, below = self._shelf(folder)
        return store, below + b"/" + name if below else name

    def _source(self, file: Path, shown: bytes) -> SingleSource:
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

    def _store(self, path: bytes, file: Path, progress: Progress) -> None:
        target, name = self._target(path)
        source = self._source(file, name)
        lock = _lock(target)
        try:
            if target.facts.folders and target.stat(_JOURNAL) is not None:
                for _ in target.list():  # what a call that was killed left behind goes with the lock
                    pass
            self._carry(source, target, progress)
        finally:
            lock.release()
            self._give_back()

    def _carry(self, source: SingleSource, target: Store, progress: Progress) -> None:
        def tell(event: Event) -> None:
            if isinstance(event, Carrying):
                progress(event.bytes)
            else:
                self._tell(event)

        entry = source.entry()
        for store in (source.store, target):
            store.expect(entry.size)
        mover = StreamMover(self._location.site.limits.bandwidth, tell)
        for event in mover.carry(source, target, [Item(0, entry)]):
            if not isinstance(event, Landed):
                self._tell(event)
            elif event.problem is not None:
                raise IncompleteError(event.problem.code, event.problem.message, about=self._location.text)
            elif event.proof.strength < weakest(source.facts.proof_read, target.facts.proof_write).strength:
                raise IncompleteError(
                    "unproven",
                    f"it arrived with no more than {event.proof} as its proof",
                    about=self._location.text,
                )
        progress(entry.size)

    def _retrieve(self, path: bytes, file: Path, progress: Progress) -> None:
        found = self._find(path)
        if found is None or found.kind is not Kind.FILE:
            raise NotFoundError("no-such-place", "there is no such content", about=self._location.text)
        store = self._open()
        store.expect(found.size)
        take_file(store, found, file, progress, about=self._location.text)

    def _remove(self, path: bytes) -> None:
        found = self._find(path)
        if found is None:
            return
        folder, _, name = path.rpartition(b"/")
        target, below = self._shelf(folder)
        lock = _lock(target)
        try:
            self._remove_from(target, [found._replace(path=below + b"/" + name if below else name)])
        finally:
            lock.release()
            self._give_back()

    def _remove_from(self, target: Store, entries: list[Entry]) -> None:
        for _, problem in target.remove(entries):
            if problem is not None:
                raise IncompleteError(problem.code, problem.message, about=self._location.text)

    def _remove_folder(self, path: bytes) -> None:
        found = self._find(path)
        if found is None or found.kind is not Kind.FOLDER or not self._open().facts.folders:
            return
        below = list(self._shelf(path)[0].list())
        self._give_back()
        if any(entry.kind is not Kind.FOLDER for entry in below):
            return
        folder, _, name = path.rpartition(b"/")
        target, _ = self._shelf(folder)
        lock = _lock(target)
        try:
            deepest = [entry._replace(path=name + b"/" + entry.path) for entry in reversed(below)]
            self._remove_from(target, [*deepest, found._replace(path=name)])
        finally:
            lock.release()
            self._give_back()


def _lock(target: Store) -> Lock:
    """The lock of one folder, waited for a while; others are at work in others."""
    pauses = growing_intervals(0.1, 2.0)
    until = time.monotonic() + _LOCKED_SECONDS
    while True:
        try:
            return target.lock("annex", make=True)
        except TryLaterError as problem:
            if problem.code != "locked" or time.monotonic() > until:
                raise
        pause(pauses.next_pause())
