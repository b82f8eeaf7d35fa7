"""Keep hibali's own files at a server without an agent, and remove what is no longer wanted there."""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice
from typing import Protocol

from hibali.errors import AccessError, HibaliError
from transfers.agent import protocol
from transfers.model.entry import Entry, Kind
from transfers.model.leases import locked
from transfers.model.store import problem_of
from transfers.model.units import Problem
from transfers.stores.server.lease import Held, Lease, NoLease, journal_of, seeds_in

OWN = protocol.OWN_FOLDER
_JOURNAL = OWN + b"/journal"
SMALL_BYTES = 64 * 1024  # the most that is read of one of hibali's own files
_BATCH = 256
CHANGED_SINCE = Problem("target-changed", "it changed after it was listed, so it was left unchanged")
NOT_EMPTY = Problem("folder-not-empty", "it contains entries that were not listed, so it was not removed")


class ServerFiles(Protocol):
    """The requests that hibali's own files need; paths are below the site's URL."""

    @property
    def subject(self) -> str:
        """The site, as errors name it."""

    def read_small(self, path: bytes, most: int) -> bytes | None:
        """Return at most `most` bytes of a file, None if it is missing."""

    def put(self, path: bytes, content: bytes) -> object:
        """Write a whole small file, replacing an existing one."""

    def delete(self, path: bytes) -> object:
        """Remove a file; a missing one is no error."""

    def make_folder(self, path: bytes) -> None:
        """Make one folder whose parents exist; an existing one is no error."""

    def is_empty(self, folder: bytes) -> bool:
        """Return whether a folder has no entry."""

    def remove_folder(self, path: bytes) -> object:
        """Remove a folder that `is_empty`; a missing one is no error."""


def below(folder: bytes, path: bytes) -> bytes:
    """Join `folder` and `path`; either may be empty."""
    return folder + b"/" + path if folder and path else folder or path


class Own:
    """Hibali's own small files below one root, and their folder."""

    def __init__(self, files: ServerFiles, root: bytes) -> None:
        self._files = files
        self._root = root

    def seeds(self, folder: bytes = b"") -> list[bytes]:
        """Return the seeds of unfinished operations in `folder` below the root, newest first."""
        return seeds_in(self._files.read_small(below(self._root, below(folder, _JOURNAL)), SMALL_BYTES))

    def open_seed(self, earlier: list[bytes]) -> bytes:
        """Return a new seed, recorded in the journal beside the earlier ones."""
        seed = os.urandom(16)
        self._files.make_folder(below(self._root, OWN))
        self._files.put(below(self._root, _JOURNAL), journal_of([seed, *earlier]))
        return seed

    def end_journal(self) -> None:
        """Remove the journal when no partial file is left."""
        with contextlib.suppress(HibaliError):
            self._files.delete(below(self._root, _JOURNAL))

    def remove_folder(self) -> None:
        """Remove `.hibali` if it is empty; it may hold another client's lock or a user's files."""
        folder = below(self._root, OWN)
        with contextlib.suppress(HibaliError):
            if self._files.is_empty(folder):
                self._files.remove_folder(folder)


class FolderMaker:
    """The missing folders above written files, each of which is made once; thread-safe."""

    def __init__(self, files: ServerFiles, path_of: Callable[[bytes], bytes]) -> None:
        """Set the fields; `path_of` returns the full path of one below the root."""
        self._files = files
        self._path_of = path_of
        self._made: set[bytes] = set()
        self._making = threading.Lock()

    def make_above(self, path: bytes) -> None:
        """Make missing folders above a path below the root. Raise if one of them is a file."""
        parts = path.split(b"/")[:-1]
        for count in range(1, len(parts) + 1):
            folder = b"/".join(parts[:count])
            with self._making:
                if folder not in self._made:
                    self._files.make_folder(self._path_of(folder))
                    self._made.add(folder)

    def forget(self, folder: bytes) -> None:
        """Forget a removed folder and all folders in it."""
        with self._making:
            self._made = {made for made in self._made if not (made + b"/").startswith(folder + b"/")}


class EntryRemover(ABC):
    """A remover of files (concurrently) and of empty folders (one by one)."""

    def __init__(self, pool: Executor, path_of: Callable[[bytes], bytes]) -> None:
        """Set the fields; `path_of` returns the full path of one below the root."""
        self._pool = pool
        self._path_of = path_of

    def remove(
        self, entries: Iterable[Entry], check: Callable[[], None]
    ) -> Iterator[tuple[Entry, Problem | None]]:
        """Yield one result for each entry, in order; `check` raises if the lock was lost."""
        coming = iter(entries)
        while batch := list(islice(coming, _BATCH)):
            check()
            while batch:
                count = next((n for n, entry in enumerate(batch) if entry.kind is Kind.FOLDER), len(batch))
                files, batch = batch[:count], batch[count:]
                yield from zip(files, self._pool.map(self._remove, files), strict=True)
                for folder in batch[:1]:
                    yield folder, self._remove(folder)
                batch = batch[1:]

    def _remove(self, entry: Entry) -> Problem | None:
        try:
            path = self._path_of(entry.path)
            return self.remove_folder(path) if entry.kind is Kind.FOLDER else self.remove_file(path, entry)
        except HibaliError as problem:
            return problem_of(problem, denied=True)

    @abstractmethod
    def remove_file(self, path: bytes, entry: Entry) -> Problem | None:
        """Remove a file that is unchanged since the listing; a missing one is no error."""

    @abstractmethod
    def remove_folder(self, path: bytes) -> Problem | None:
        """Remove an empty folder; a missing one is no error."""


class TreeRemover:
    """The removal of a root below the site's URL, and of the `.hibali` folders below it."""

    def __init__(
        self,
        files: ServerFiles,
        root: bytes,
        own_folders: Iterable[bytes],
        find_lock: Callable[[bytes], Held | None],
    ) -> None:
        """Set the fields; `find_lock` returns the lock of a folder, by its full path."""
        self._files = files
        self._root = root
        self._own_folders = list(own_folders)
        self._find_lock = find_lock

    def check(self) -> None:
        """Raise `TryLaterError("locked")` if a lock is held above, or at one of the folders."""
        parts = self._root.split(b"/") if self._root else []
        above = [b"/".join(parts[:count]) for count in range(len(parts))]
        for folder in [*above, *(below(self._root, own) for own in self._own_folders)]:
            try:
                found = self._find_lock(folder)
            except AccessError:
                if folder not in above:
                    raise
                continue  # folders of others, at a machine
            if found is not None and not found.free:
                raise locked(found.holder, self._files.subject)

    def sweep(
        self, check: Callable[[], None], hold: Callable[[bytes], Lease | NoLease]
    ) -> list[tuple[bytes, Problem]]:
        """Remove own files in the folders, each while `hold` has its lock; return the failures."""
        problems = []
        for own in self._own_folders:
            check()
            folder = below(self._root, own)
            try:
                held = hold(folder)
                self._remove_own(own)
                held.release()
                Own(self._files, folder).remove_folder()
            except HibaliError as problem:
                problems.append((own, Problem(problem.code, problem.message)))
        return problems

    def _remove_own(self, own: bytes = b"") -> None:
        """Remove own files in the `.hibali` there, except a held lock."""
        for name in protocol.OWN:
            if name != b"lock":
                self._files.delete(below(below(self._root, own), OWN + b"/" + name))

    def remove_root(self, holder: Lease | NoLease, remove: Callable[[], Problem | None]) -> Problem | None:
        """Release the lock and `remove` the root, which must be empty then."""
        self._remove_own()
        holder.release()
        Own(self._files, self._root).remove_folder()
        return remove()
