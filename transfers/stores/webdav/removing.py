"""Remove exactly what was listed at a WebDAV server, or a whole tree."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice

from hibali.errors import HibaliError
from transfers.agent import protocol
from transfers.entry import Entry, Kind
from transfers.stores.base import Problem
from transfers.stores.s3.requests import problem_of
from transfers.stores.server_lease import Lease, NoLease, locked
from transfers.stores.webdav.files import Files
from transfers.stores.webdav.lock import (
    OWN,
    DavLock,
    Own,
    ask_lock,
    below,
    find_lock,
    holding,
    token_in,
    unlock,
)
from transfers.stores.webdav.probe import Honours

_BATCH = 256
_FOLDER_SECONDS = 60
_CHANGED = Problem("target-changed", "it changed after it was listed and was left alone")
_NOT_EMPTY = Problem("folder-not-empty", "it holds something that was not listed, so it stays")


class FileRemover:
    """Removes files many at once, and folders one by one once nothing is in them."""

    def __init__(
        self, files: Files, pool: Executor, honours: Honours, path_of: Callable[[bytes], bytes]
    ) -> None:
        """`path_of` gives the whole path of one below the root."""
        self._files = files
        self._pool = pool
        self._honours = honours
        self._path_of = path_of

    def remove(
        self, entries: Iterable[Entry], check: Callable[[], None]
    ) -> Iterator[tuple[Entry, Problem | None]]:
        """One answer an entry, in order; `check` raises where the target is no longer ours."""
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

    def remove_file(self, path: bytes, entry: Entry) -> Problem | None:
        """Remove a file that is still what was listed; an absent one is done already."""
        found = self._files.look(path)
        if found is None:
            return None
        if not found.is_still(entry):
            return _CHANGED
        if self._honours.if_match and not found.tag.startswith("@"):
            status = self._files.delete(path, {"If-Match": f'"{found.tag}"'})
            if status != 412:
                return None
            again = self._files.look(path)
            if again is None:
                return None
            # The very same: its tag is weak in its first second, and no condition takes a weak one.
            if again != found:
                return _CHANGED
        self._files.delete(path)
        return None

    def remove_folder(self, path: bytes) -> Problem | None:
        """Remove an empty folder. Where the server locks, nobody can put anything into it between the look and the DELETE."""
        found = self._files.look(path)
        if found is None:
            return None
        if not found.folder:
            return _CHANGED
        token = ""
        if self._honours.locks:
            token = token_in(ask_lock(self._files.wire, path, _FOLDER_SECONDS, "hibali", depth="infinity"))
            if not token:
                return Problem("locked-by-another", "another client has locked it")
        headers = holding(self._files.wire, path, token) if token else {}
        gone = False
        try:
            if next(self._files.children(path).names, None) is not None:
                return _NOT_EMPTY
            gone = self._files.delete(path, headers, folder=True) < 300
        finally:
            if token and not gone:
                with contextlib.suppress(HibaliError):
                    unlock(self._files.wire, path, token)
        return None if gone else _CHANGED


class TreeRemover:
    """One root below the site's URL, and the places below it that have a `.hibali` of their own."""

    def __init__(self, files: Files, root: bytes, places: Iterable[bytes]) -> None:
        self._files = files
        self._root = root
        self._places = list(places)

    def check(self) -> None:
        """Raise `TryLaterError("locked")` where somebody holds a folder above, or one of the places."""
        parts = self._root.split(b"/") if self._root else []
        above = [b"/".join(parts[:count]) for count in range(len(parts))]
        for folder in [*above, *(below(self._root, place) for place in self._places)]:
            found = find_lock(self._files, folder)
            if found is not None and not found.free:
                raise locked(found.holder, self._files.subject)

    def sweep(self, lease: int, check: Callable[[], None], *, locks: bool) -> list[tuple[bytes, Problem]]:
        """Remove what is kept at the places, as the holder of their locks where the server has some; what could not be."""
        problems = []
        for place in self._places:
            check()
            folder = below(self._root, place)
            try:
                held = DavLock(self._files, folder, "rm", lease) if locks else NoLease()
                self.remove_own(place)
                held.release()
                Own(self._files, folder).remove_folder()
            except HibaliError as problem:
                problems.append((place, Problem(problem.code, problem.message)))
        return problems

    def remove_own(self, place: bytes = b"") -> None:
        """Remove all that is ours in the `.hibali` there, but for a lock that is held."""
        for name in protocol.OWN:
            if name != b"lock":
                self._files.delete(below(below(self._root, place), OWN + b"/" + name))

    def remove_root(self, holder: Lease | NoLease, remove: Callable[[], Problem | None]) -> Problem | None:
        """Give the lock back and `remove` the root, which has to be empty by then."""
        self.remove_own()
        holder.release()
        Own(self._files, self._root).remove_folder()
        return remove()
