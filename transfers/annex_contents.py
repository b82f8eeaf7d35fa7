"""Contents that git-annex keeps at a place: stored, found, given back, renamed and removed one by one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from hibali.errors import IncompleteError, NotFoundError
from hibali.events import Carrying, Event, Listener, ignore
from hibali.locations import Location
from transfers.entry import Entry, Kind, weakest
from transfers.kept_place import KeptPlace
from transfers.movers.stream import StreamMover
from transfers.shelving import named_anew
from transfers.single import SingleSource
from transfers.store import PACK_BYTES, Item, Landed, Problem, Store
from transfers.taking import put_content, take_file

Progress = Callable[[int], None]

_JOURNAL = b".hibali/journal"


class AnnexContents:
    """One place, reached when it is first needed, and once more where the kept connection broke meanwhile.

    Paths are relative bytes. Every method raises errors of the hibali family; nothing is left half-done under a final name.
    """

    def __init__(self, location: Location, tell: Listener = ignore) -> None:
        """`tell` hears what is worth telling, from any thread."""
        self._place = KeptPlace(location, tell)
        self._about = location.text

    def make_place(self) -> None:
        """Make the folder of the place; one that can only be read has to be there."""
        self._place.ask(self._make)

    def is_present(self, path: bytes, size: int | None = None) -> bool:
        """Whether a file stands there, of that size where one is given. Raises `NotFoundError` where the place itself is gone."""
        return self._place.ask(lambda: self._present(path, size))

    def store(self, path: bytes, file: Path, progress: Progress) -> None:
        """Land a file of this machine there, hashed at both ends, going on where an earlier call was cut off."""
        self._place.ask(lambda: self._store(path, file, progress))

    def retrieve(self, path: bytes, file: Path, progress: Progress, digest: str | None = None) -> None:
        """Write what stands there, of that sha256 where one is given, into `file`, going on behind what is in it already."""
        self._place.ask(lambda: self._retrieve(path, file, progress, digest))

    def remove(self, path: bytes) -> None:
        """Remove a file; an absent one is done."""
        self._place.ask(lambda: self._remove(path))

    def remove_folder(self, path: bytes) -> None:
        """Remove a folder of empty folders; one that still holds somebody's files stays, an absent one is done."""
        self._place.ask(lambda: self._remove_folder(path))

    def rename(self, path: bytes, other: bytes) -> bool:
        """Give a file another name without its bytes travelling; False, and nothing done, where the place cannot do that."""
        return self._place.ask(lambda: self._rename(path, other))

    def files(self) -> list[Entry]:
        """All files there, in order; a place that cannot be listed whole is an error."""
        return self._place.ask(lambda: [one for one in self._place.store().list() if one.kind is Kind.FILE])

    def close(self) -> None:
        """Let go of all connections; safe to call twice."""
        self._place.close()

    def _make(self) -> None:
        store = self._place.store()
        if store.facts.writable:
            self._place.writable().make_root()
        elif store.stat() is None:
            raise NotFoundError("no-such-place", "there is nothing there", about=self._about)

    def _present(self, path: bytes, size: int | None) -> bool:
        found = self._place.find(path)
        return found is not None and found.kind is Kind.FILE and (size is None or found.size == size)

    def _store(self, path: bytes, file: Path, progress: Progress) -> None:
        self._place.check_holdable(path)
        if self._store_small(path, file):
            progress(file.stat().st_size)
            return
        folder, name = _parted(path)
        with self._place.locked_shelf(folder) as (target, below):
            source = self._place.source(file, below + name)
            if target.facts.folders and target.stat(_JOURNAL) is not None:
                for _ in target.list():  # what a call that was killed left behind goes with the lock
                    pass
            self._carry(source, target, progress)

    def _store_small(self, path: bytes, file: Path) -> bool:
        """Store a file of a pack's size at most in one request; False where that takes the locked way."""
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
        except OSError:  # the locked way reads it by an agent, and says what is wrong
            return False
        if len(content) != found.st_size:
            raise IncompleteError("source-changed", "the file changed while it was read", about=self._about)
        entry = Entry(path, Kind.FILE, len(content), found.st_mtime_ns, stat.S_IMODE(found.st_mode))
        return store.store_whole(entry, content)

    def _carry(self, source: SingleSource, target: Store, progress: Progress) -> None:
        def tell(event: Event) -> None:
            if isinstance(event, Carrying):
                progress(event.bytes)
            else:
                self._place.tell(event)

        entry = source.entry()
        for store in (source.store, target):
            store.expect(entry.size)
        mover = StreamMover(self._place.location.site.limits.bandwidth, tell)
        for event in mover.carry(source, target, [Item(0, entry)]):
            if not isinstance(event, Landed):
                self._place.tell(event)
                continue
            self._check(event)
            if event.proof.strength < weakest(source.facts.proof_read, target.facts.proof_write).strength:
                message = f"it arrived with no more than {event.proof} as its proof"
                raise IncompleteError("unproven", message, about=self._about)
        progress(entry.size)

    def _check(self, landed: Landed) -> None:
        self._check_problem(landed.problem)

    def _check_problem(self, problem: Problem | None) -> None:
        if problem is not None:
            raise IncompleteError(problem.code, problem.message, about=self._about)

    def _retrieve(self, path: bytes, file: Path, progress: Progress, digest: str | None) -> None:
        found = self._place.find_file(path)
        whole = self._place.whole()
        if whole is not None and found.size <= PACK_BYTES:
            put_content(whole.fetch_whole(found), file, progress, digest=digest, about=self._about)
            return
        store = self._place.store()
        store.expect(found.size)
        take_file(store, found, file, progress, digest=digest, about=self._about)

    def _remove(self, path: bytes) -> None:
        found = self._place.find(path)
        if found is None:
            return
        self._place.writable()
        whole = self._place.whole()
        if found.kind is Kind.FILE and whole is not None:
            self._check_problem(whole.remove_whole(found))
            return
        folder, name = _parted(path)
        with self._place.locked_shelf(folder) as (target, below):
            self._remove_from(target, [found._replace(path=below + name)])

    def _remove_from(self, target: Store, entries: list[Entry]) -> None:
        for _, problem in target.remove(entries):
            self._check_problem(problem)

    def _remove_folder(self, path: bytes) -> None:
        found = self._place.find(path)
        if found is None or found.kind is not Kind.FOLDER or not self._place.store().facts.folders:
            return
        with self._place.shelf(path) as (shelf, _):
            held = list(shelf.list())
        if any(entry.kind is not Kind.FOLDER for entry in held):
            return
        folder, name = _parted(path)
        with self._place.locked_shelf(folder) as (target, _):
            deepest = [entry._replace(path=name + b"/" + entry.path) for entry in reversed(held)]
            self._remove_from(target, [*deepest, found._replace(path=name)])

    def _rename(self, path: bytes, other: bytes) -> bool:
        self._place.check_holdable(other)
        found = self._place.find_file(path)
        above = os.path.commonpath([b"/" + path, b"/" + other + b"/."])[1:]
        with self._place.locked_shelf(above) as (shelf, below):
            before, after = (below + one[len(above) :].lstrip(b"/") for one in (path, other))
            landing = named_anew(shelf, found._replace(path=before), after)
            if landing is None:
                return False
            for landed in landing:
                self._check(landed)
            self._remove_from(shelf, [found._replace(path=before)])
        return True


def _parted(path: bytes) -> tuple[bytes, bytes]:
    """The folder above, and the name in it."""
    folder, _, name = path.rpartition(b"/")
    return folder, name
