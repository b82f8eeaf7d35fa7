"""A place in a dataset as a store: annexed files are files, whether their content is here or not."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

from hibali.events import Listener
from hibali.locations import Location
from transfers.datasets.annexed import POINTER, POINTER_BYTES
from transfers.datasets.changes import Changes
from transfers.datasets.contents import Contents, is_reserved
from transfers.datasets.repository import RESERVED, Place, find_place
from transfers.entry import Entry, Kind
from transfers.receipt import Receipt
from transfers.request import Saving
from transfers.store import (
    Adjustment,
    Facts,
    Item,
    Landed,
    ListingIncompleteError,
    Lock,
    Payload,
    Problem,
    Space,
    Store,
    Unit,
)

Opener = Callable[[Location], Store]

_AT_ONCE = 256
_SHORTEST_POINTER = 20
NOT_HERE = "content-not-here"


def see_dataset(store: Store, location: Location, opener: Opener, tell: Listener) -> Store:
    """The store, or a view of it where it is in a dataset of this machine; `opener` opens more of the same site."""
    place = find_place(store.where) if location.site.kind == "local" else None
    if place is None:
        return store
    return DatasetStore(store, place, location, opener, tell)  # type: ignore[return-value]


class DatasetStore:
    """The Store protocol over a folder or file in a repository (transfers.store.Store).

    What makes the repository (RESERVED) is not seen. An annexed file has the time of its symlink or pointer file, which stays when
    its content comes and goes, and the digest that its key tells. Content is read where git-annex keeps it, never written there.
    """

    def __init__(
        self, store: Store, place: Place, location: Location, opener: Opener, tell: Listener
    ) -> None:
        self.store = store
        self.where = store.where
        self.packed_at: bytes | None = getattr(store, "packed_at", None)  # see TellsPacks
        self._location = location
        self._opener = opener
        self._contents = Contents(place, tell)
        self._changes = Changes(self._contents, tell)
        self._receives = False
        self._reads: Store | None = None

    @property
    def facts(self) -> Facts:
        """Those of the filesystem, without what an annexed file cannot have."""
        plain = self.store.facts
        return replace(plain, keeps=False, attributes=False, hard_links=False, reserved=RESERVED)

    @property
    def wire_bytes(self) -> int:
        """See Store."""
        return self.store.wire_bytes

    @property
    def logins(self) -> int:
        """See Store."""
        return self.store.logins

    @property
    def limited_by(self) -> str | None:
        """See Store."""
        return self.store.limited_by

    def receive(self, siblings: Iterable[str]) -> None:
        """It is a target: what is not here is missing. Raises `UsageError` for a sibling that is none."""
        self._receives = True
        self._changes.check_siblings(siblings)

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        place = self._contents.place
        if not path and place.link:
            found = os.lstat(place.path)
            link = os.readlink(place.path)  # noqa: PTH115 - a name in bytes
            bare = Entry(b"", Kind.LINK, found.st_size, found.st_mtime_ns, link=link)
            return self._seen(bare)
        entry = self.store.stat(path)
        return entry if entry is None or not path else self._seen(entry)

    def take_attributes(self) -> bool:
        """See Store: an annexed file has none."""
        return False

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store."""
        unlisted: list[tuple[bytes, Problem]] = []
        try:
            for entry in self.store.list(shallow=shallow):
                seen = self._seen(entry)
                if seen is not None and seen.size < 0:
                    why = "its content is not here and its key does not tell its size; get it first"
                    unlisted.append((seen.path, Problem(NOT_HERE, why)))
                elif seen is not None:
                    yield seen
        except ListingIncompleteError as problem:
            unlisted += problem.unlisted
        if unlisted:
            raise ListingIncompleteError(self._location.text, unlisted)

    def _seen(self, entry: Entry) -> Entry | None:
        """An entry as it is meant: None for what is no data, a file for what is annexed."""
        if is_reserved(entry.path):
            return None
        link = entry.link if entry.kind is Kind.LINK else None
        small = entry.kind is Kind.FILE and _SHORTEST_POINTER <= entry.size <= POINTER_BYTES
        key = self._contents.key(entry.path, link) if small or link is not None else None
        if key is None:
            return entry
        content = self._contents.find(entry.path)
        if self._receives and content is None:
            return entry  # it is in nobody's way, and brought again
        size, mode = key.size, entry.mode if link is None else -1
        if content is not None:
            found = Path(os.fsdecode(content)).lstat()
            # those of a target are git-annex's own, and not compared
            size, mode = found.st_size, -1 if self._receives else found.st_mode & 0o777
        annexed = entry._replace(kind=Kind.FILE, size=size, mode=mode, digest=key.sha256)
        marked = entry.link or POINTER + key.name
        return annexed._replace(link=marked, links=1, allocated=-1, offline=False)

    def bring(self, entries: Iterable[Entry]) -> None:
        """Get the content of these, as far as it is not here; what cannot be got is told when it is read."""
        self._contents.bring(entry.path for entry in entries if entry.kind is Kind.FILE)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store; content that is not here is a problem of its item."""
        asked: deque[Unit] = deque()

        def placed() -> Iterator[Unit]:
            for unit in units:
                self.bring(
                    item.entry for item in unit.items
                )  # whoever did not say before what is going to be read
                known = replace(unit, items=tuple(self._as_got(item) for item in unit.items))
                asked.append(known)
                items = (replace(item, entry=self._placed(item.entry)) for item in known.items)
                yield replace(known, items=tuple(items))

        for payload in self._reader().read(placed()):
            payload.unit = asked.popleft()
            for position in payload.problems:
                path = payload.unit.items[position].entry.path
                if self._contents.find(path) is None:
                    payload.problems[position] = self._missing(path)
            yield payload

    def _as_got(self, item: Item) -> Item:
        """What of a file is known only when its content is here: the execute bit, and the time of an unlocked one."""
        entry = item.entry
        content = self._contents.find(entry.path) if entry.kind is Kind.FILE and entry.link else None
        if content is None:
            return item
        found = Path(os.fsdecode(content)).stat()
        if entry.link.startswith(POINTER):
            entry = entry._replace(mtime_ns=found.st_mtime_ns)
        return replace(item, entry=entry._replace(mode=found.st_mode & 0o777))

    def _placed(self, entry: Entry) -> Entry:
        """The same under the name of its content, with the time that has, which the reader holds it to."""
        own = self._contents.absolute(entry.path)
        content = self._contents.find(entry.path) if entry.kind is Kind.FILE else None
        name = content or own
        path = name[len(self._contents.common().rstrip(b"/")) + 1 :]
        if content is None or content == own:
            return entry._replace(path=path, link=b"" if entry.kind is Kind.FILE else entry.link)
        return entry._replace(path=path, link=b"", mtime_ns=Path(os.fsdecode(content)).stat().st_mtime_ns)

    def _missing(self, path: bytes) -> Problem:
        return Problem(NOT_HERE, self._contents.why_missing(path))

    def _reader(self) -> Store:
        if self._reads is None:
            path = self._contents.common().decode("utf-8", "surrogateescape")
            self._reads = self._opener(replace(self._location, path=path, slash=True))
        return self._reads

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store; content that is not here is got first, for a key alone proves nothing in this call."""
        coming = iter(entries)
        while some := list(islice(coming, _AT_ONCE)):
            self.bring(some)
            here = [self._contents.find(entry.path) is not None for entry in some]
            present = [entry for entry, is_here in zip(some, here, strict=True) if is_here]
            computed = self._reader().digest(self._placed(entry) for entry in present)
            for entry, is_here in zip(some, here, strict=True):
                if is_here:
                    _, digest, problem = next(computed)
                    yield entry, digest, problem
                else:
                    yield entry, None, self._missing(entry.path)
            for _ in computed:  # up to the end of the answer
                pass

    def write(self, payloads: Iterable[Payload]) -> Generator[Landed, None, None]:
        """See Store; names are on disk before anything lands, so that no commit forgets them."""

        def noted() -> Iterator[Payload]:
            for payload in payloads:
                unit = payload.unit
                for position, item in enumerate(unit.items):
                    if unit.last and position not in payload.problems:
                        self._changes.begin(item.entry)
                items = (replace(i, replaces=i.replaces and _as_listed(i.replaces)) for i in unit.items)
                payload.unit = replace(unit, items=tuple(items))
                yield payload

        with closing(self.store.write(noted())) as landing:
            for landed in landing:
                if landed.problem is not None:
                    self._changes.fail(landed.item.entry)
                yield landed

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; of an annexed file the name goes, and its content stays until `git annex dropunused`."""
        asked: deque[Entry] = deque()

        def listed() -> Iterator[Entry]:
            for entry in entries:
                asked.append(entry)
                self._changes.begin(entry)
                yield _as_listed(entry)

        for _, problem in self.store.remove(listed()):
            entry = asked.popleft()
            if problem is not None:
                self._changes.fail(entry)
            yield entry, problem

    def adjust(self, adjustments: Iterable[Adjustment]) -> Iterator[tuple[Adjustment, Problem | None]]:
        """See Store; the permissions of annexed content are git-annex's."""

        def plain() -> Iterator[Adjustment]:
            for adjustment in adjustments:
                if not adjustment.entry.link:
                    self._changes.begin(adjustment.entry)
                    yield adjustment

        yield from self.store.adjust(plain())

    def keep(self, place: Location, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; never asked for, since `facts.keeps` is false: the history keeps what is replaced."""
        return self.store.keep(place, entries)

    def make_root(self) -> None:
        """See Store."""
        self.store.make_root()

    def expect(self, size: int) -> None:
        """See Store."""
        self.store.expect(size)

    def begun(self, item: Item) -> int:
        """See Store."""
        return self.store.begun(item)

    def lock(self, operation: str, *, make: bool = False) -> Lock:
        """See Store."""
        lock = self.store.lock(operation, make=make)
        self._changes.open()
        return lock

    def space(self) -> Space:
        """See Store."""
        return self.store.space()

    def save(self, receipt: Receipt, saving: Saving) -> None:
        """Commit what landed here and is in no commit yet, and push that on. Raises `IncompleteError` with what to type."""
        self._changes.save(receipt, saving)

    def close(self) -> None:
        """See Store."""
        self._changes.close()
        if self._reads is not None:
            self._reads.close()
        self.store.close()


def _as_listed(entry: Entry) -> Entry:
    """An annexed file as the symlink that it is on disk."""
    if entry.kind is Kind.FILE and entry.link and not entry.link.startswith(POINTER):
        return entry._replace(kind=Kind.LINK, size=len(entry.link))
    return entry
