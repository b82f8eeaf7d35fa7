"""Examine folders and names before a listing reaches them, in several threads, where the filesystem answers slowly.

The listing examines once more what could not be examined here, and reports its error.
"""

import contextlib
import os
import time
from collections import deque
from itertools import chain, islice
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional

from transfers.agent.names import Names
from transfers.agent.progress import step
from transfers.agent.safe_path import Root
from transfers.agent.threads import THREADS, RootThreads

_DOT = b"."[0]
_MOST_NAMES = 512  # examined at a time
_FOLDERS = 8  # below one folder, examined ahead
_MOST_FOLDERS = 32  # whose results wait at a time
_RECENT_SECONDS = 5.0
_SAMPLES = 8  # names whose examination is timed, at first and again later
_SLOW_SECONDS = 100e-6  # for a name; a few microseconds if the kernel has it in memory

Found = Dict[bytes, os.stat_result]


class Folder(object):
    """The names in a folder, and the status of those that were examined lately."""

    def __init__(self, path: bytes, names: Names, found: Found) -> None:
        self.path = path
        self.names = names
        self.found = found
        self.at = time.monotonic()

    def is_recent(self) -> bool:
        """Return whether what was found ahead still counts as found now."""
        return time.monotonic() - self.at < _RECENT_SECONDS

    def status(self, name: bytes) -> Optional[os.stat_result]:
        """Return the status of a name, once; None if it has to be examined."""
        if self.found and not self.is_recent():
            self.found = {}
        return self.found.pop(name, None)


class _Below(object):
    """The folders below one folder, in order: those that wait for a thread, and how many are visited ahead."""

    def __init__(self) -> None:
        self.waiting: Deque[bytes] = deque()
        self.ahead = 0


class Prefetcher(object):
    """The threads of one listing, which opens folder after folder in order. Without `deep`, it lists one folder.

    Names of a folder that `leaves_out` are not examined, and may be listed none the less.
    """

    def __init__(
        self,
        root: Root,
        deep: bool,  # noqa: FBT001  # Python 3.6 style
        leaves_out: Optional[Callable[[bytes, bytes], bool]],
    ) -> None:
        self._root = root
        self._deep = deep
        self._leaves_out = leaves_out
        self._threads: Optional[RootThreads] = None  # none while the filesystem is fast
        self._wanted = _SAMPLES  # of the next names
        self._samples = self._slow = 0
        self._below: Dict[bytes, _Below] = {}
        self._visits: Dict[bytes, Any] = {}

    def open(self, path: bytes) -> Folder:
        """Return a folder, which may have been visited already; raises OSError."""
        visit = self._visits.pop(path, None)
        above = self._below.get(_parent(path))
        if above is not None and self._threads is not None:
            if visit is not None:
                above.ahead -= 1
            elif above.waiting and above.waiting[0] == path:
                above.waiting.popleft()
            self._go_ahead(self._threads, _parent(path), above)
        folder: Optional[Folder] = visit.result() if visit is not None and not visit.cancel() else None
        if folder is None or not folder.is_recent():
            return Folder(path, Names(self._root.folder(path)), {})
        return folder

    def names(self, folder: Folder) -> Iterator[bytes]:
        """Return a folder's names in order, folders with a trailing slash; they are examined as they are taken."""
        return chain.from_iterable(self._examined(folder))

    def _examined(self, folder: Folder) -> Iterator[List[bytes]]:
        names, leaves_out = iter(folder.names), self._leaves_out
        if leaves_out is not None:
            is_left_out = leaves_out
            names = (name for name in names if name[0] == _DOT or not is_left_out(folder.path, _bare(name)))
        while True:
            some = list(islice(names, _MOST_NAMES))
            self._forget_below(folder.path)
            if not some:
                return
            if self._threads is None:
                self._sample(folder, some[: self._wanted])
            if self._threads is not None:
                self._examine(self._threads, folder, some)
            yield some

    def _sample(self, folder: Folder, names: List[bytes]) -> None:
        """Examine some names only for the time that it takes, and start the threads if most took long."""
        for name in names:
            began = time.monotonic()
            with contextlib.suppress(OSError):
                os.stat(_bare(name), dir_fd=self._root.folder(folder.path), follow_symlinks=False)
            self._slow += time.monotonic() - began > _SLOW_SECONDS
            self._samples += 1
        if self._samples >= _SAMPLES:
            if self._slow > self._samples // 2:
                with contextlib.suppress(OSError, RuntimeError):  # no further files or threads
                    self._threads = RootThreads(self._root)
            self._samples = self._slow = 0
            self._wanted = 1

    def close(self) -> None:
        """End the threads."""
        if self._threads is None:
            return
        for visit in self._visits.values():
            visit.cancel()
        self._threads.close()

    def _examine(self, threads: RootThreads, folder: Folder, names: List[bytes]) -> None:
        """Examine these names, and let threads go ahead to the folders among them."""
        below = [_bare(name) for name in names if name[-1:] == b"/"] if self._deep else []
        if below:
            level = self._below.setdefault(folder.path, _Below())
            level.waiting.extend(folder.path + b"/" + name if folder.path else name for name in below)
            self._go_ahead(threads, folder.path, level)
        unknown = [name for name in map(_bare, names) if name not in folder.found]
        if len(unknown) < THREADS:
            return
        with contextlib.suppress(OSError):
            descriptor = self._root.folder(folder.path)
            for found in threads.map_parts(lambda _, part: _stat_all(descriptor, part), unknown):
                folder.found.update(found)
            folder.at = time.monotonic()

    def _forget_below(self, path: bytes) -> None:
        """Forget what is left of the folders below one: of names that vanished, or that are not listed."""
        level = self._below.pop(path, None)
        if level is None or not level.ahead:
            return
        for ahead in [each for each in self._visits if _parent(each) == path]:
            self._visits.pop(ahead).cancel()

    def _go_ahead(self, threads: RootThreads, path: bytes, below: _Below) -> None:
        """Let threads visit the next folders below one."""
        while below.waiting and below.ahead < _FOLDERS and len(self._visits) < _MOST_FOLDERS:
            ahead = below.waiting.popleft()
            self._visits[ahead] = threads.submit(_visit, ahead)
            below.ahead += 1
        if not below.waiting and not below.ahead:
            self._below.pop(path, None)


def _visit(root: Root, path: bytes) -> Optional[Folder]:
    """Read a folder, and examine its names if they are few."""
    try:
        descriptor = root.folder(path)
        names = Names(descriptor, few=True)
        few = [_bare(name) for name in islice(names, _MOST_NAMES + 1)]
        return Folder(path, names, _stat_all(descriptor, few) if len(few) <= _MOST_NAMES else {})
    except Exception:  # noqa: BLE001  # the listing tries itself, and reports
        return None


def _parent(folder: bytes) -> bytes:
    return folder.rpartition(b"/")[0]


def _bare(name: bytes) -> bytes:
    return name[:-1] if name.endswith(b"/") else name


def _stat_all(descriptor: int, names: Iterable[bytes]) -> Found:
    """Return what can be examined of these names in an open folder."""
    found = {}
    for name in names:
        step()
        try:
            found[name] = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except OSError:  # the listing tries itself, and reports
            continue
    return found
