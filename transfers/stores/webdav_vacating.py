"""Removing a whole tree at a WebDAV server: nobody may be at work around it or in it, and what hibali itself keeps there goes, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hibali.errors import HibaliError
from transfers.agent import own_names
from transfers.kept_lease import KeptLease, NoLock
from transfers.lock_record import locked
from transfers.store import Problem
from transfers.stores.webdav_files import Files
from transfers.stores.webdav_lock import DavLock, living_holder
from transfers.stores.webdav_own import OWN, Own, below


class Vacating:
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
            holder = living_holder(self._files, folder)
            if holder is not None:
                raise locked(holder, self._files.about)

    def sweep(self, lease: int, check: Callable[[], None], *, locks: bool) -> list[tuple[bytes, Problem]]:
        """Remove what is kept at the places, as the holder of their locks where the server has some; what could not be."""
        problems = []
        for place in self._places:
            check()
            folder = below(self._root, place)
            try:
                held = DavLock(self._files, folder, "rm", lease) if locks else NoLock()
                self.remove_own(place)
                held.release()
                Own(self._files, folder).remove_folder()
            except HibaliError as problem:
                problems.append((place, Problem(problem.code, problem.message)))
        return problems

    def remove_own(self, place: bytes = b"") -> None:
        """Remove all that is ours in the `.hibali` there, but for a lock that is held."""
        for name in own_names.OWN:
            if name != b"lock":
                self._files.delete(below(below(self._root, place), OWN + b"/" + name))

    def remove_root(self, holder: KeptLease | NoLock, remove: Callable[[], Problem | None]) -> Problem | None:
        """Give the lock back and `remove` the root, which has to be empty by then."""
        self.remove_own()
        holder.release()
        Own(self._files, self._root).remove_folder()
        return remove()
