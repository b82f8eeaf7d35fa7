"""Find, list, read, create, copy and remove files of sites by text paths, SITE/PATH, over connections that are kept."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from hibali.config.kinds import kind_of
from hibali.errors import HibaliError, NotFoundError, UsageError, is_lost
from hibali.events import Carried, Event
from hibali.locations import Location, check_writable
from hibali.retry import with_retries
from hibali_api.calls import Call, calling
from hibali_api.transfers import check_receipt
from hibali_plugins.filesystem.connections import Connections
from hibali_plugins.filesystem.os_errors import NoSuchFileError, UnfinishedError, as_os_error
from transfers.engine.operation import synchronise
from transfers.engine.request import Request
from transfers.model.entry import Entry, Kind, enclosing
from transfers.model.rules import DeleteLimit, Rules
from transfers.model.store import Store
from transfers.model.units import Item, Payload, Unit
from transfers.remote.connection import error_from
from transfers.remove import RemovalRequest, remove
from transfers.single_files import differs, make_place

Result = TypeVar("Result")
Range = tuple[int, int]
Version = tuple[Any, ...]
Ends = Callable[[Call], tuple[Location, Location]]

_PIECE_BYTES = 16 * 1024 * 1024
_numbers = itertools.count()  # unique, because a store keeps files open by the number of an item
_connections: dict[str, Connections] = {}  # by config.toml: all filesystems of a process share them
_WHILE_LOCKED: Any = {"attempts": 1000, "first_wait": 0.1, "longest_wait": 2.0, "patience": 300.0}
_writing: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()  # by target folder
_writing_guard = threading.Lock()


@dataclass(frozen=True, slots=True)
class Found:
    """A file or folder at its location; symlinks were followed."""

    location: Location
    entry: Entry

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.entry.kind is Kind.FILE

    @property
    def version(self) -> Version:
        """What tells one version of the file from another."""
        entry = self.entry
        return entry.size, entry.mtime_ns, entry.inode, entry.etag


class SiteFiles:
    """The files of all sites of config.toml. Every error is also an OSError. Use it from any thread."""

    def __init__(self, config: str | None) -> None:
        self._config = config
        self._stores = _connections.setdefault(config or "", Connections())

    # ---- calls

    @contextmanager
    def _calling(self) -> Iterator[Call]:
        try:
            with calling("", {"config": self._config}) as call:
                yield call
        except HibaliError as problem:
            raised = as_os_error(problem)
            raise raised from (problem.__cause__ if raised is problem else problem)

    def repeatable(self, act: Callable[[Call], Result]) -> Result:
        """Call `act`, and again if a connection that was kept turned out to be lost."""
        with self._calling() as call:
            try:
                return act(call)
            except HibaliError as problem:
                if not is_lost(problem):
                    raise
            return act(call)

    def location(self, call: Call, path: str) -> Location:
        """Return the location of SITE/PATH, in which `$` is an ordinary character. Raises `UsageError`."""
        name, _, rest = path.partition("/")
        if not name:
            raise UsageError("bad-location", "the site is missing: hibali://SITE/PATH", subject=path)
        return call.recorded(os.fsencode(f"{call.settings.site(name).name}:{rest}"))

    @contextmanager
    def _in_folder(self, location: Location) -> Iterator[tuple[Store, bytes]]:
        """Yield a store and the name in it of the file at a location."""
        if kind_of(location.site).has_keys:
            with self._stores.keys(location) as store:
                yield store, location.raw
        elif not location.name or "/" not in location.path:
            with self._stores.folder(location) as store:
                yield store, b""
        else:
            with self._stores.folder(location.parent) as store:
                yield store, location.name

    def small_files(self, folder: Location) -> AbstractContextManager[Store]:
        """Yield a store that stores and fetches the small files of a folder, over a kept connection."""
        return self._stores.folder(folder, small_files=True)

    # ---- listing

    def sites(self) -> list[str]:
        """Return the names of all sites, sorted."""
        with self._calling() as call:
            return sorted(call.settings.sites)

    def find(self, path: str) -> Found | None:
        """Return the file or folder at a path, None if there is nothing."""
        return self.repeatable(lambda call: self._find(call, path))

    def require(self, path: str) -> Found:
        """Return the file or folder at a path. Raises FileNotFoundError."""
        found = self.find(path)
        if found is None:
            raise NoSuchFileError("no-such-place", "no file or folder with that name exists", subject=path)
        return found

    def _find(self, call: Call, path: str) -> Found | None:
        location = self.location(call, path)
        try:
            with self._in_folder(location) as (store, name):
                entry = store.stat(name)
        except NotFoundError:  # the folder is missing
            return None
        if entry is not None and entry.kind is Kind.LINK:
            with self._stores.folder(location) as store:
                entry, real = store.stat(), store.resolved()[0]
            location = replace(location, path=os.fsdecode(real))
        return None if entry is None else Found(location, entry)

    def entries(self, path: str, *, recursive: bool) -> list[tuple[str, Entry]]:
        """Return the path and entry of everything in a folder; of a file itself. Raises FileNotFoundError."""
        return self.repeatable(lambda call: self._entries(call, path, recursive=recursive))

    def _entries(self, call: Call, path: str, *, recursive: bool) -> list[tuple[str, Entry]]:
        found = self._find(call, path)
        if found is None:
            raise NotFoundError("no-such-place", "no file or folder with that name exists", subject=path)
        if found.entry.kind is not Kind.FOLDER:
            return [(path, found.entry)]
        with self._stores.folder(found.location) as store:
            entries = list(store.list(shallow=not recursive))
            if recursive and not store.facts.folders:
                entries += _folders_of(entries)
        literal = not kind_of(found.location.site).has_keys
        named = [(_listed(path, entry.name, literal=literal), entry) for entry in entries]
        return [(name, self._behind(call, name, entry)) for name, entry in named]

    def _behind(self, call: Call, path: str, entry: Entry) -> Entry:
        """Return what a symlink leads to; other entries unchanged."""
        found = self._find(call, path) if entry.kind is Kind.LINK else None
        return entry if found is None else found.entry

    def kinds(self, folder: str, names: Sequence[str]) -> dict[str, Kind]:
        """Return the kind of each existing name below a folder, with one listing if there are several."""
        if len(names) == 1:
            found = self.find(below(folder, names[0]))
            return {} if found is None else {names[0]: found.entry.kind}
        wanted, start = set(names), len(folder) + 1
        listed = ((path[start:], entry.kind) for path, entry in self.entries(folder, recursive=True))
        return {"": Kind.FOLDER, **{name: kind for name, kind in listed if name in wanted}}

    # ---- reading

    def read_ranges(self, found: Found, ranges: Sequence[Range]) -> list[bytes]:
        """Read ranges (start, end) of one version of a file. Raises OSError if it was replaced, or is damaged where all is read."""
        return self.repeatable(lambda _: self._read_ranges(found, ranges))

    def _read_ranges(self, found: Found, ranges: Sequence[Range]) -> list[bytes]:
        with self._in_folder(found.location) as (store, name):
            item = Item(next(_numbers), found.entry._replace(path=name))
            units = [unit for start, end in ranges for unit in _pieces(item, start, end)]
            contents = iter([_content(payload, found.location.text) for payload in store.read(iter(units))])
        read = [b"".join(next(contents) for _ in _pieces(item, start, end)) for start, end in ranges]
        digest = found.entry.digest
        if digest and any(
            each == (0, found.entry.size) and hashlib.sha256(content).hexdigest() != digest
            for each, content in zip(ranges, read, strict=True)
        ):
            raise damaged(found.location.text)
        return read

    # ---- writing

    def check_target(self, path: str) -> None:
        """Raise the error of a path that cannot be written, before anything is prepared for it."""
        with self._calling() as call:
            check_writable(self.location(call, path))

    def transfer(
        self, ends: Ends, rules: Rules | None = None, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Transfer from one location to another, as `hibali sync` does, with a receipt in the history.

        Other threads and processes may write to the same folder: this waits while one of them has locked it.
        """

        def show(event: Event) -> None:
            if on_bytes is not None and isinstance(event, Carried):
                on_bytes(event.bytes)

        def attempt() -> HibaliError | None:
            """Return a problem that waiting does not solve."""
            try:
                check_receipt(synchronise(request, show))
            except HibaliError as problem:
                if problem.code != "locked":
                    return problem
                problem.transient = True
                raise
            return None

        with self._calling() as call:
            request = Request("sync", *ends(call), rules or Rules())
            with _one_at_a_time(request.target):
                failure = with_retries(attempt, subject=request.target.text, **_WHILE_LOCKED)
            if failure is not None:
                raise failure

    def make(self, path: str) -> bool:
        """Create a folder and its parents; return whether it was missing. An object store has no folders: True."""
        with self._calling() as call:
            location = self.location(call, path)
            return kind_of(location.site).has_keys or make_place(location, call.on_event)

    def remove(self, path: str, *, recursive: bool) -> None:
        """Remove a file, or with `recursive` a folder and its content, as `hibali rm` does."""
        with self._calling() as call:
            location, sites = self.location(call, path), tuple(call.settings.sites.values())
            request = RemovalRequest(location, recursive, DeleteLimit(percent=100), sites)
            check_receipt(remove(request, lambda _: None, call.on_event))

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._stores.close()


@contextmanager
def _one_at_a_time(target: Location) -> Iterator[None]:
    """Let the threads of this process write to a folder one after the other, instead of refusing each other's lock."""
    with _writing_guard:
        lock = _writing.setdefault(f"{target.site.name}:{os.path.dirname(target.path)}", threading.Lock())  # noqa: PTH120
    with lock:
        yield


def _folders_of(entries: Sequence[Entry]) -> list[Entry]:
    """Return the folders that the names of an object store imply."""
    paths = {folder for entry in entries for folder in enclosing(entry.path)} - {b""}
    return [Entry(path, Kind.FOLDER) for path in sorted(paths)]


def below(folder: str, name: str) -> str:
    """Return the path of a name below a folder; the folder for ""."""
    return f"{folder.rstrip('/') if folder else folder}/{name}" if name else folder


def _listed(folder: str, name: str, *, literal: bool) -> str:
    """Return the path of a listed name; with `literal` no name at the top of the site means a home or another root."""
    protected = literal and name.startswith(("~", "@")) and "/" not in folder.rstrip("/")
    return below(folder, f"./{name}" if protected else name)


def changed(path: str) -> HibaliError:
    """Return the error for a file that was replaced."""
    return UnfinishedError(
        "changed", "the file was replaced after it was first read", subject=path, hint="Open it again."
    )


def damaged(path: str) -> HibaliError:
    """Return the error for a file whose content differs from its recorded digest."""
    return as_os_error(differs(path))


def _pieces(item: Item, start: int, end: int) -> Iterator[Unit]:
    for offset in range(start, end, _PIECE_BYTES):
        yield Unit((item,), offset, min(_PIECE_BYTES, end - offset), segment=True, piece=True)


def _content(payload: Payload, subject: str) -> bytes:
    problem = payload.problems.get(0)
    if problem is not None:
        raise error_from(problem.code, problem.message, subject)
    return bytes(payload.data)
