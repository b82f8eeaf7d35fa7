"""Store, fetch, rename and remove the contents of git-annex keys at a site."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from hibali.config.model import local_site
from hibali.errors import (
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
    UsageError,
    is_lost,
)
from hibali.events import Carrying, Event, Listener, ignore
from hibali.locations import Location, check_writable
from hibali.retry import growing_intervals, pause
from hibali.text import printable
from transfers.engine.routes.stream import StreamRoute
from transfers.model.entry import Entry, Kind, weakest
from transfers.model.facts import name_problem, unsafe_component
from transfers.model.store import Lock, Store, named_anew
from transfers.model.units import PACK_BYTES, Committed, Item, Problem
from transfers.planning.protected_roots import check_read_only_roots, check_root_exists
from transfers.single_files import download_file, write_content
from transfers.stores.open_store import open_store
from transfers.stores.single_file import SingleSource

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")

_LOCKED_SECONDS = 60.0  # long enough for another transfer into the same folder, unless its file is large


class CachedRoot:
    """A root at a site with cached connections. Paths are relative bytes; methods raise hibali's errors."""

    def __init__(self, location: Location, on_event: Listener = ignore) -> None:
        """Keep the location; `on_event` receives events from any thread."""
        self.location = location
        self.on_event = on_event
        self._there: Store | None = None
        self._here: Store | None = None
        self._lent: list[Store] = []
        self._whole: Store | None = None
        self._checked = False

    def close(self) -> None:
        """Close all connections; safe to call twice."""
        self._close_lent()
        cached, self._there, self._here = [self._there, self._here], None, None
        for store in cached:
            if store is not None:
                with suppress(HibaliError):
                    store.close()

    def run(self, act: Callable[[], _Result]) -> _Result:
        """Call `act`, and once more with a new connection if a cached one was lost.

        After any failure all connections are closed, because the state of the other side is unknown.
        """
        cached = self._there is not None
        try:
            return act()
        except TryLaterError as problem:
            self.close()
            if not (cached and is_lost(problem)):
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
        """Return the store of the root."""
        if self._there is None:
            self._there = open_store(self.location, on_event=self.on_event)
            self._whole = self._there if self._there.can(Store.find_whole) else None
        return self._there

    def whole(self) -> Store | None:
        """Return the same store if it handles small files without a lock; cached for all requests."""
        self.store()
        return self._whole

    def writable(self) -> Store:
        """Return the same store; raise `RefusedError` if it or the configuration does not allow writing."""
        store = self.store()
        if not self._checked:
            check_writable(self.location)
            if not store.facts.writable:
                raise RefusedError("read-only-site", "this site can only be read", subject=self.location.text)
            check_read_only_roots(self.location, store.root_path, store)
            check_root_exists(self.location, store, open_store)
            self._checked = True
        return store

    def find(self, path: bytes) -> Entry | None:
        """Return the entry at a path; raise `NotFoundError` if the root is missing (not mounted)."""
        reason = unsafe_component(path)
        if reason:
            raise self._unsafe(path, reason)
        store, whole = self.store(), self.whole()
        find = store.stat if whole is None else whole.find_whole
        found = find(path)
        if found is None and store.facts.folders and find(b"") is None:
            raise NotFoundError(
                "no-such-place",
                "the location does not exist, so its contents are unknown",
                subject=self.location.text,
                hint="Check that the filesystem is mounted. `git annex enableremote` creates the location again.",
            )
        return found

    def find_file(self, path: bytes) -> Entry:
        """Return the file at a path; raise `NotFoundError` if there is none."""
        found = self.find(path)
        if found is None or found.kind is not Kind.FILE:
            raise NotFoundError("no-such-file", "this content does not exist", subject=self.location.text)
        return found

    def check_name(self, path: bytes) -> None:
        """Raise `RefusedError` for a name that the store cannot have or that hibali reserves."""
        reason = name_problem(path, self.writable().facts)
        if reason or b".hibali" in path.split(b"/"):
            raise self._unsafe(path, reason or "hibali reserves this name")

    def _unsafe(self, path: bytes, reason: str) -> RefusedError:
        message = f"the location does not support the name {printable(path)}: {reason}"
        return RefusedError("unsafe-name", message, subject=self.location.text)

    @contextmanager
    def open_folder(self, folder: bytes) -> Iterator[tuple[Store, bytes]]:
        """Open a store for the files of a folder, without a lock.

        Yields:
            The store, and the path of the folder in it, with a trailing slash or b"".
        """
        store = self.writable()
        try:
            if store.can(Store.substore):
                folder_store, below = store.substore(folder)
                yield folder_store, below + b"/" if below else b""
                return
            place = self.location
            for part in folder.split(b"/") if folder else ():
                place = place.child(part)
            self._lent.append(open_store(place, on_event=self.on_event))
            yield self._lent[-1], b""
        finally:
            self._close_lent()

    def _close_lent(self) -> None:
        while self._lent:
            with suppress(HibaliError):
                self._lent.pop().close()

    @contextmanager
    def open_locked_folder(self, folder: bytes) -> Iterator[tuple[Store, bytes]]:
        """Open the same, with the folder created if needed and locked against other hibali commands."""
        with self.open_folder(folder) as (store, below):
            lock = _lock(store)
            try:
                yield store, below
                lock.finish()
            finally:
                lock.release()

    def source(self, file: Path, shown: bytes) -> SingleSource:
        """Return a file on this machine as a source, read by an agent that computes its hash."""
        real = os.fsencode(os.path.realpath(file))
        folder, _, name = real.rpartition(b"/")
        if self._here is None:
            self._here = open_store(Location(local_site(), "/", "/", slash=True))
        source = SingleSource(self._here.substore(folder.lstrip(b"/"))[0], name, shown)
        if source.entry().kind is not Kind.FILE:
            raise UsageError("not-a-file", "this is not a regular file", subject=printable(real))
        return source


def _lock(store: Store) -> Lock:
    """Lock a folder, and wait up to `_LOCKED_SECONDS`; other folders have their own locks."""
    pauses = growing_intervals(0.1, 2.0)
    until = time.monotonic() + _LOCKED_SECONDS
    while True:
        try:
            return store.lock("annex", make=True)
        except TryLaterError as problem:
            if problem.code != "locked" or time.monotonic() > until:
                raise
        pause(pauses.next_pause())


Progress = Callable[[int], None]

_JOURNAL = b".hibali/journal"


def _reconnecting(
    method: Callable[Concatenate[AnnexContents, _Arguments], _Result],
) -> Callable[Concatenate[AnnexContents, _Arguments], _Result]:
    """Run a method once more with new connections if a cached one was lost."""

    @wraps(method)
    def run(self: AnnexContents, /, *args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        return self._place.run(lambda: method(self, *args, **options))

    return run


class AnnexContents:
    """The annexed contents at a site.

    It connects at first use, and once more if a cached connection was lost. Paths are relative bytes. Methods
    raise hibali's errors and never leave an incomplete file under a final name.
    """

    def __init__(self, location: Location, on_event: Listener = ignore) -> None:
        """Keep the location; `on_event` receives events from any thread."""
        self._place = CachedRoot(location, on_event)
        self._subject = location.text

    @_reconnecting
    def make_place(self) -> None:
        """Create the root folder; on a read-only site, raise `NotFoundError` if it is missing."""
        store = self._place.store()
        if store.facts.writable:
            self._place.writable().make_root()
        elif store.stat() is None:
            raise NotFoundError("no-such-place", "it does not exist", subject=self._subject)

    @_reconnecting
    def is_present(self, path: bytes, size: int | None = None) -> bool:
        """Return whether a file (of that size) exists. Raises `NotFoundError` if the root is missing."""
        found = self._place.find(path)
        return found is not None and found.kind is Kind.FILE and (size is None or found.size == size)

    @_reconnecting
    def store(self, path: bytes, file: Path, progress: Progress) -> None:
        """Upload a file, hashed at both ends; an interrupted upload is resumed."""
        self._place.check_name(path)
        if self._store_small(path, file):
            progress(file.stat().st_size)
            return
        folder, name = _parted(path)
        with self._place.open_locked_folder(folder) as (target, below):
            source = self._place.source(file, below + name)
            if target.facts.folders and target.stat(_JOURNAL) is not None:
                for _ in target.list():  # listing under the lock removes what a killed command left
                    pass
            self._carry(source, target, progress)

    @_reconnecting
    def retrieve(self, path: bytes, file: Path, progress: Progress, digest: str | None = None) -> None:
        """Download into `file`, which may have the start already; verify the sha256 if given."""
        found = self._place.find_file(path)
        whole = self._place.whole()
        if whole is not None and found.size <= PACK_BYTES:
            write_content(whole.fetch_whole(found), file, progress, digest=digest, subject=self._subject)
            return
        store = self._place.store()
        store.expect(found.size)
        download_file(store, found, file, progress, digest=digest, subject=self._subject)

    @_reconnecting
    def remove(self, path: bytes) -> None:
        """Remove a file; a missing one is not an error."""
        found = self._place.find(path)
        if found is None:
            return
        self._place.writable()
        whole = self._place.whole()
        if found.kind is Kind.FILE and whole is not None:
            self._check_problem(whole.remove_whole(found))
            return
        folder, name = _parted(path)
        with self._place.open_locked_folder(folder) as (target, below):
            self._remove_from(target, [found._replace(path=below + name)])

    @_reconnecting
    def remove_folder(self, path: bytes) -> None:
        """Remove a folder of empty folders; one with files is kept, a missing one is not an error."""
        found = self._place.find(path)
        if found is None or found.kind is not Kind.FOLDER or not self._place.store().facts.folders:
            return
        with self._place.open_folder(path) as (folder_store, _):
            held = list(folder_store.list())
        if any(entry.kind is not Kind.FOLDER for entry in held):
            return
        folder, name = _parted(path)
        with self._place.open_locked_folder(folder) as (target, _):
            deepest = [entry._replace(path=name + b"/" + entry.path) for entry in reversed(held)]
            self._remove_from(target, [*deepest, found._replace(path=name)])

    @_reconnecting
    def rename(self, path: bytes, other: bytes) -> bool:
        """Rename a file without a transfer; return False, with nothing changed, if that is not possible."""
        self._place.check_name(other)
        found = self._place.find_file(path)
        above = os.path.commonpath([b"/" + path, b"/" + other + b"/."])[1:]
        with self._place.open_locked_folder(above) as (folder_store, below):
            before, after = (below + one[len(above) :].lstrip(b"/") for one in (path, other))
            results = named_anew(folder_store, found._replace(path=before), after)
            if results is None:
                return False
            for committed in results:
                self._check_problem(committed.problem)
            self._remove_from(folder_store, [found._replace(path=before)])
        return True

    @_reconnecting
    def files(self) -> list[Entry]:
        """Return all files, in order; raises if the listing is incomplete."""
        return [one for one in self._place.store().list() if one.kind is Kind.FILE]

    def close(self) -> None:
        """Close all connections; safe to call twice."""
        self._place.close()

    def _store_small(self, path: bytes, file: Path) -> bool:
        """Store a file of at most PACK_BYTES in one request; return False if it needs a lock."""
        self._place.writable()
        store = self._place.whole()
        if store is None:
            return False
        try:
            with file.open("rb") as stream:
                found = os.fstat(stream.fileno())
                if not stat.S_ISREG(found.st_mode) or found.st_size > PACK_BYTES:
                    return False
                content = stream.read(PACK_BYTES + 1)
        except OSError:  # the agent then reads it under the lock, and reports the error
            return False
        if len(content) != found.st_size:
            raise IncompleteError(
                "source-changed", "the file changed while it was read", subject=self._subject
            )
        entry = Entry(path, Kind.FILE, len(content), found.st_mtime_ns, stat.S_IMODE(found.st_mode))
        return store.store_whole(entry, content)

    def _carry(self, source: SingleSource, target: Store, progress: Progress) -> None:
        def on_event(event: Event) -> None:
            if isinstance(event, Carrying):
                progress(event.bytes)
            else:
                self._place.on_event(event)

        entry = source.entry()
        for store in (source.store, target):
            store.expect(entry.size)
        mover = StreamRoute(self._place.location.site.limits.bandwidth, on_event)
        for event in mover.carry(source, target, [Item(0, entry)]):
            if not isinstance(event, Committed):
                self._place.on_event(event)
                continue
            self._check_problem(event.problem)
            if (
                event.verification.strength
                < weakest(source.facts.read_verification, target.facts.write_verification).strength
            ):
                message = f"the content was verified only by {event.verification}"
                raise IncompleteError("unproven", message, subject=self._subject)
        progress(entry.size)

    def _check_problem(self, problem: Problem | None) -> None:
        if problem is not None:
            raise IncompleteError(problem.code, problem.message, subject=self._subject)

    def _remove_from(self, target: Store, entries: list[Entry]) -> None:
        for _, problem in target.remove(entries):
            self._check_problem(problem)


def _parted(path: bytes) -> tuple[bytes, bytes]:
    """Split a path into its parent folder and its name."""
    folder, _, name = path.rpartition(b"/")
    return folder, name
