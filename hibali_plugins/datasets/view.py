"""Read and write a path in a dataset as a store: annexed files appear as files."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice

from hibali.events import Listener
from hibali.locations import Location
from hibali_plugins.datasets.contents import Contents
from hibali_plugins.datasets.repository import (
    POINTER,
    POINTER_BYTES,
    RESERVED,
    RepositoryPath,
    find_repository_path,
    is_reserved,
)
from hibali_plugins.datasets.saving import Changes
from transfers.engine.request import SaveOptions, SavingView
from transfers.history.journal import Receipt
from transfers.model.entry import Entry, Kind
from transfers.model.facts import Facts
from transfers.model.store import Lock, RootIdentity, Store, read_renamed, with_answers
from transfers.model.units import Adjustment, Committed, Item, ListingIncompleteError, Payload, Problem, Unit

Opener = Callable[[Location], Store]

NOT_HERE = "content-not-here"
_BATCH_COUNT = 256


class ContentReader:
    """A reader of annexed contents, with a store that includes git-annex's objects."""

    def __init__(
        self, contents: Contents, location: Location, opener: Opener, *, fetches: bool = True
    ) -> None:
        """Keep the contents; without `fetches`, missing content is not fetched."""
        self._contents = contents
        self._location = location
        self._opener = opener
        self._fetches = fetches
        self._around: Store | None = None

    def fetch(self, entries: Iterable[Entry]) -> None:
        """Get the missing content of these entries; failures are reported when it is read."""
        if self._fetches:
            self._contents.fetch(entry.path for entry in entries if entry.kind is Kind.FILE)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store; missing content is a problem of its item."""

        def got(unit: Unit) -> Unit:
            # not every caller calls `fetch` before
            self.fetch(item.entry for item in unit.items)
            return replace(unit, items=tuple(self._as_got(item) for item in unit.items))

        for payload in read_renamed(self._store().read, map(got, units), self._placed):
            for position in payload.problems:
                path = payload.unit.items[position].entry.path
                if self._contents.find(path) is None:
                    payload.problems[position] = self._missing(path)
            yield payload

    def _as_got(self, item: Item) -> Item:
        """Return the item with what is known only with its content: the mode, and an unlocked file's time."""
        entry = item.entry
        content = self._contents.find(entry.path) if entry.kind is Kind.FILE and entry.link else None
        if content is None:
            return item
        if entry.link.startswith(POINTER):
            entry = entry._replace(mtime_ns=content.status.st_mtime_ns)
        return item._replace(entry=entry._replace(mode=content.status.st_mode & 0o777))

    def _placed(self, entry: Entry) -> Entry:
        """Return the entry with its content's path and time, which the reader compares."""
        own = self._contents.absolute(entry.path)
        content = self._contents.find(entry.path) if entry.kind is Kind.FILE else None
        path = (content.name if content is not None else own)[len(self._contents.common) :]
        if entry.kind is not Kind.FILE:
            return entry._replace(path=path)
        if content is None or content.name == own:
            return entry._replace(path=path, link=b"")
        return entry._replace(path=path, link=b"", mtime_ns=content.status.st_mtime_ns)

    def _missing(self, path: bytes) -> Problem:
        return Problem(NOT_HERE, self._contents.why_missing(path))

    def _store(self) -> Store:
        if self._around is None:
            path = self._contents.common.decode("utf-8", "surrogateescape")
            self._around = self._opener(replace(self._location, path=path, slash=True))
        return self._around

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store; missing content is fetched first, because the key alone verifies nothing."""
        coming = iter(entries)
        while some := list(islice(coming, _BATCH_COUNT)):
            self.fetch(some)
            here = [self._contents.find(entry.path) is not None for entry in some]
            present = [entry for entry, is_here in zip(some, here, strict=True) if is_here]
            computed = self._store().digest(self._placed(entry) for entry in present)
            for entry, is_here in zip(some, here, strict=True):
                if is_here:
                    _, digest, problem = next(computed)
                    yield entry, digest, problem
                else:
                    yield entry, None, self._missing(entry.path)
            for _ in computed:  # read the answer to its end
                pass

    def close(self) -> None:
        """Close the store; safe to call twice."""
        if self._around is not None:
            self._around.close()


_SHORTEST_POINTER = 20


def dataset_view(
    store: Store, location: Location, opener: Opener, on_event: Listener, *, fetches: bool = True
) -> Store:
    """Return the store, or a view of it if it is in a dataset on this machine.

    `opener` opens further stores of the same site. Without `fetches`, missing content is not fetched.
    """
    place = find_repository_path(store.root_path) if location.site.kind == "local" else None
    if place is None:
        return store
    return DatasetStore(store, place, location, opener, on_event, fetches=fetches)


class DatasetStore(SavingView):
    """A store for a folder or file in a repository.

    The repository's own files (RESERVED) are hidden. An annexed file has the time of its symlink or pointer
    file, which does not depend on its content, and the digest of its key. Content is read from git-annex's
    objects, never written there.
    """

    def __init__(
        self,
        store: Store,
        place: RepositoryPath,
        location: Location,
        opener: Opener,
        on_event: Listener,
        *,
        fetches: bool = True,
    ) -> None:
        super().__init__(store)
        self._location = location
        self._contents = Contents(place, on_event, location.logins)
        self._reading = ContentReader(self._contents, location, opener, fetches=fetches)
        self._changes = Changes(self._contents, on_event)
        self._receives = False

    @property
    def facts(self) -> Facts:
        """The facts of the filesystem, without what annexed files cannot have."""
        return replace(self.store.facts, attributes=False, hard_links=False, globus=False, reserved=RESERVED)

    def receive(self, saving: SaveOptions) -> None:
        """See SavingView. Raises the errors of `Changes.check`."""
        self._receives = True
        self._changes.check(saving)

    def root_identity(self) -> RootIdentity | None:
        """See Store."""
        return self.store.root_identity()

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        place = self._contents.place
        if not path and place.link:
            return self._itself()
        entry = self.store.stat(path)
        return entry if entry is None or not path else self._seen(entry)

    def _itself(self) -> Entry | None:
        """Return the annexed file at the path itself."""
        path = self._contents.place.path
        try:
            found, link = os.lstat(path), os.readlink(path)  # noqa: PTH115 - a name in bytes
        except OSError:
            return None
        return self._seen(Entry(b"", Kind.LINK, mtime_ns=found.st_mtime_ns, link=link))

    def list_only(self, names: frozenset[bytes]) -> None:
        """See Store."""
        self.store.list_only(names)

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store."""
        unlisted: list[tuple[bytes, Problem]] = []
        try:
            for entry in self.store.list(shallow=shallow):
                seen = self._seen(entry)
                if seen is not None and seen.size < 0:
                    why = (
                        "its content is not on this machine and its key has no size; to get it: git annex get"
                    )
                    unlisted.append((seen.path, Problem(NOT_HERE, why)))
                elif seen is not None:
                    yield seen
        except ListingIncompleteError as problem:
            unlisted += problem.unlisted
        if unlisted:
            raise ListingIncompleteError(self._location.text, unlisted)

    def _seen(self, entry: Entry) -> Entry | None:
        """Return the entry as users see it: None for the repository's own, a file for an annexed one."""
        if is_reserved(entry.path):
            return None
        link = entry.link if entry.kind is Kind.LINK else None
        small = entry.kind is Kind.FILE and _SHORTEST_POINTER <= entry.size <= POINTER_BYTES
        key = self._contents.key(entry.path, link) if small or link is not None else None
        if key is None:
            return entry
        content = self._contents.find(entry.path)
        if self._receives and content is None:
            return entry  # a symlink without content can be replaced
        size = key.size if content is None else content.status.st_size
        # git-annex sets the permissions of its objects, so they are not compared
        mode = entry.mode if link is None else -1
        annexed = entry._replace(kind=Kind.FILE, size=size, mode=mode, digest=key.sha256)
        marked = entry.link or POINTER + key.name
        return annexed._replace(link=marked, links=1, allocated=-1, offline=False)

    def fetch(self, entries: Iterable[Entry]) -> None:
        """See Store."""
        self._reading.fetch(entries)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store; missing content is a problem of its item."""
        return self._reading.read(units)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        return self._reading.digest(entries)

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store; each name is recorded before its file is committed, for the git commit."""

        def noted() -> Iterator[Payload]:
            for payload in payloads:
                unit = payload.unit
                for position, item in enumerate(unit.items):
                    if unit.last and position not in payload.problems:
                        self._changes.begin(item.entry)
                items = (i._replace(replaces=i.replaces and _as_listed(i.replaces)) for i in unit.items)
                payload.unit = replace(unit, items=tuple(items))
                yield payload

        with closing(self.store.write(noted())) as results:
            for committed in results:
                if committed.problem is not None:
                    self._changes.fail(committed.item.entry)
                yield committed

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; only the name of an annexed file is removed (content: `git annex dropunused`)."""

        def listed(entry: Entry) -> Entry:
            self._changes.begin(entry)
            return _as_listed(entry)

        for entry, (_, problem) in with_answers(self.store.remove, entries, listed):
            if problem is not None:
                self._changes.fail(entry)
            yield entry, problem

    def adjust(self, adjustments: Iterable[Adjustment]) -> Iterator[tuple[Adjustment, Problem | None]]:
        """See Store; annexed files are skipped, because git-annex sets their permissions."""

        def plain() -> Iterator[Adjustment]:
            for adjustment in adjustments:
                if not adjustment.entry.link:
                    self._changes.begin(adjustment.entry)
                    yield adjustment

        yield from self.store.adjust(plain())

    def make_root(self) -> None:
        """See Store."""
        self.store.make_root()

    def begun(self, item: Item) -> int:
        """See Store."""
        return self.store.begun(item)

    def lock(self, operation: str, *, make: bool = False) -> Lock:
        """See Store."""
        lock = self.store.lock(operation, make=make)
        self._changes.open()
        return lock

    def save(self, receipt: Receipt, saving: SaveOptions) -> None:
        """See SavingView."""
        self._changes.save(receipt, saving)

    def close(self) -> None:
        """See Store."""
        self._changes.close()
        self._reading.close()
        self.store.close()


def _as_listed(entry: Entry) -> Entry:
    """Return an annexed file as the symlink that it is on disk."""
    if entry.kind is Kind.FILE and entry.link and not entry.link.startswith(POINTER):
        return entry._replace(kind=Kind.LINK, size=0)
    return entry
