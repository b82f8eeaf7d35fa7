"""Deleting what was listed in a collection, and only that, by delete tasks of Globus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from hibali.errors import NotFoundError
from hibali.events import Listener
from hibali.sites import GLOBUS_DEADLINE_SECONDS
from transfers.entry import Entry, Kind
from transfers.globus.asking import Globus
from transfers.globus.bodies import deadline_after, delete_body
from transfers.globus.faults import error_of, fault_of, with_details
from transfers.globus.following import Following
from transfers.globus.paths import below
from transfers.store import Problem

TASK_NAMES = 5_000
_STANDSTILL = 600.0  # seconds; what cannot be deleted now is left, and planned again
_CHANGED = Problem("target-changed", "it changed after it was listed and was left alone")
_NOT_EMPTY = Problem("folder-not-empty", "the folder holds what was not listed, and was left alone")

Listed = Callable[[bytes], dict[bytes, Entry]]


class Removing:
    """Deletions below one folder of one collection. Everything is looked at again right before it goes."""

    def __init__(
        self,
        globus: Globus,
        collection: str,
        root: str,
        label: str,
        listed: Listed,
        tell: Listener,
        *,
        deadline_seconds: float = GLOBUS_DEADLINE_SECONDS,
    ) -> None:
        """`listed` gives what a folder holds now, by path; raises `NotFoundError` for one that is gone."""
        self._globus = globus
        self._collection = collection
        self._root = root
        self._label = label
        self._listed = listed
        self._tell = tell
        self._deadline_seconds = deadline_seconds

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store: files first, then the folders that are empty by then, as the deepest come first."""
        coming = iter(entries)
        while some := list(islice(coming, TASK_NAMES)):
            files = [entry for entry in some if entry.kind is not Kind.FOLDER]
            folders = [entry for entry in some if entry.kind is Kind.FOLDER]
            gone = {entry.path: problem for entry, problem in self._files(files)}
            gone |= {entry.path: problem for entry, problem in self._folders(folders)}
            for entry in some:
                yield entry, gone[entry.path]

    def _files(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        standing = self._standing(entries)
        ready: list[Entry] = []
        for entry in entries:
            found = standing.get(entry.path)
            if found is None:
                yield entry, None
            elif _is_same(found, entry):
                ready.append(entry)
            else:
                yield entry, _CHANGED
        problem = self._delete(ready, recursive=False)
        left = self._standing(ready) if problem is not None else {}
        for entry in ready:
            yield entry, problem if entry.path in left else None

    def _folders(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """Globus deletes a folder with all in it, so each is looked into, the deepest first."""
        ready: list[Entry] = []
        going: set[bytes] = set()
        for entry in entries:
            try:
                inside = set(self._listed(entry.path))
            except NotFoundError:
                yield entry, None
                continue
            if inside <= going:
                going.add(entry.path)
                ready.append(entry)
            else:
                yield entry, _NOT_EMPTY
        tops = [entry for entry in ready if entry.path.rpartition(b"/")[0] not in going]
        problem = self._delete(tops, recursive=True)
        for entry in ready:
            yield entry, problem

    def _standing(self, entries: Iterable[Entry]) -> dict[bytes, Entry]:
        found: dict[bytes, Entry] = {}
        for folder in {entry.path.rpartition(b"/")[0] for entry in entries}:
            try:
                found |= self._listed(folder)
            except NotFoundError:
                continue
        return found

    def _delete(self, entries: Sequence[Entry], *, recursive: bool) -> Problem | None:
        """What went wrong, for all of them; a task that stands still is given up."""
        if not entries:
            return None
        paths = [below(self._root, entry.path) for entry in entries]
        body = delete_body(
            self._collection,
            paths,
            submission=self._globus.submission(),
            label=self._label,
            deadline=deadline_after(self._deadline_seconds),
        )
        task = self._globus.submit({**body, "recursive": recursive})
        following = Following(self._globus, task, self._tell, give_up_after=_STANDSTILL)
        end = following.until_over(on_interruption=lambda: self._globus.cancel(task))
        if not end.code:
            return None
        fault = fault_of(end.code)
        if not fault.of_item:
            raise error_of(end.code, f"{self._collection}:{self._root}", end.details)
        return Problem(fault.code, with_details(fault.words, end.details))


def _is_same(found: Entry, listed: Entry) -> bool:
    """Whether a name still is what was listed; a time that was not known then says nothing."""
    same = (found.kind, found.size) == (listed.kind, listed.size)
    return same and (not listed.mtime_ns or found.mtime_ns == listed.mtime_ns)
