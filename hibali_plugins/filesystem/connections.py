"""Keep stores of sites open between calls, and share them between threads."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from hibali.config.kinds import kind_of
from hibali.errors import HibaliError, NotFoundError, RefusedError
from hibali.locations import Location
from transfers.model.store import Store
from transfers.stores.open_store import open_store

_MOST_IN_USE = 4  # for each site and start: further threads wait
_IDLE_SECONDS = 60.0


_MOST_FOLDERS = 64


@dataclass(slots=True)
class _Kept:
    store: Store
    since: float = 0.0
    folders: dict[bytes, Store] = field(default_factory=dict)  # on its connection, by path

    def folder(self, path: bytes) -> Store:
        """Return the store of a folder below, which opens the folder anew with each request that requires it."""
        if path not in self.folders:
            if len(self.folders) >= _MOST_FOLDERS:
                self.folders.clear()
            self.folders[path] = self.store.substore(path)[0]
        return self.folders[path]


class Connections:
    """Stores that one thread at a time uses; a lost one is replaced, an idle one is closed after a minute."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: dict[object, list[_Kept]] = {}
        self._in_use: dict[object, int] = {}
        self._by_folder: set[str] = set()  # sites whose stores have no `substore`
        self._timer: threading.Timer | None = None
        self._process = os.getpid()

    @contextmanager
    def folder(self, location: Location, *, small_files: bool = False) -> Iterator[Store]:
        """Yield a store whose root is the folder at a location, until the block ends.

        Where one connection serves all folders of a site, it is kept; elsewhere each folder has its own store. With `small_files`
        it is only for requests that open the folder themselves, and saves the one that inspects it.
        """
        start, below = _start_of(location)
        if location.site.name not in self._by_folder and not kind_of(location.site).has_keys:
            with self._store((location.site.name, start.path), start) as (kept, close_later):
                store = kept.store
                if store.can(Store.substore):
                    yield (
                        (kept.folder(below) if small_files else store.substore(below)[0]) if below else store
                    )
                    return
                self._by_folder.add(location.site.name)
                close_later()
        with self._store((location.site.name, location.bucket, location.path), location) as (kept, _):
            yield kept.store

    @contextmanager
    def keys(self, location: Location) -> Iterator[Store]:
        """Yield the store of a whole bucket or share, whose entries are keys, until the block ends."""
        start = replace(location, path="", slash=True, through=None)
        with self._store((location.site.name, location.bucket, ""), start) as (kept, _):
            yield kept.store

    @contextmanager
    def _store(self, key: object, location: Location) -> Iterator[tuple[_Kept, Callable[[], None]]]:
        """Yield an idle or new store, and a function that keeps it from being kept."""
        found = self._take(key)
        keep = True

        def close_later() -> None:
            nonlocal keep
            keep = False

        try:
            if found is None:
                found = _Kept(open_store(location))
            yield found, close_later
        except BaseException as problem:
            # after any other error it may be lost, or in the middle of an answer
            keep = keep and isinstance(problem, NotFoundError | RefusedError)
            raise
        finally:
            self._give_back(key, found, keep=keep)

    def _take(self, key: object) -> _Kept | None:
        with self._changed:
            self._forget_after_fork()
            while self._in_use.get(key, 0) >= _MOST_IN_USE:
                self._changed.wait()
            self._in_use[key] = self._in_use.get(key, 0) + 1
            idle = self._idle.get(key)
            return idle.pop() if idle else None

    def _give_back(self, key: object, used: _Kept | None, *, keep: bool) -> None:
        if used is not None and not keep:
            _close(used.store)
        with self._changed:
            self._in_use[key] -= 1
            if used is not None and keep:
                used.since = time.monotonic()
                self._idle.setdefault(key, []).append(used)
                self._start_timer()
            self._changed.notify_all()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(_IDLE_SECONDS, self._close_idle)
            self._timer.daemon = True
            self._timer.start()

    def _close_idle(self) -> None:
        """Close what was not used for a minute; agents at a site must not stay behind a notebook."""
        ended = []
        with self._changed:
            self._timer = None
            before = time.monotonic() - _IDLE_SECONDS
            for key, idle in list(self._idle.items()):
                ended += [each.store for each in idle if each.since <= before]
                self._idle[key] = [each for each in idle if each.since > before]
            if any(self._idle.values()):
                self._start_timer()
        for store in ended:
            _close(store)

    def close(self) -> None:
        """Close all idle stores."""
        with self._changed:
            idle, self._idle = self._idle, {}
        for stores in idle.values():
            for each in stores:
                _close(each.store)

    def _forget_after_fork(self) -> None:
        """Leave the parent's connections to the parent."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._idle, self._in_use, self._timer = {}, {}, None


def _close(store: Store) -> None:
    with contextlib.suppress(HibaliError):
        store.close()


def _start_of(location: Location) -> tuple[Location, bytes]:
    """Return the home, root variable or `/` with which the path starts, or the bucket, and the path below it."""
    if kind_of(location.site).has_keys:
        return replace(location, path="", slash=True, through=None), location.raw
    first, slash, rest = location.path.partition("/")
    start = first or "/"
    return replace(location, path=start, text=f"{location.site.name}:{start}", slash=True), os.fsencode(
        rest.rstrip("/") if slash else ""
    )
