"""Present one file, files and folders of several folders, or selected files under other names, as a source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from hibali.errors import NotFoundError, RefusedError
from transfers.agent.identity import Identity
from transfers.model.entry import Entry, enclosing
from transfers.model.facts import Facts
from transfers.model.spool import sort_listing
from transfers.model.store import Side, Source, Store, StoreView, read_renamed, with_answers
from transfers.model.units import ListingIncompleteError, Payload, Problem, Unit


class SingleSource(Source):
    """A source with one file."""

    def __init__(self, store: Store, name: bytes, shown: bytes) -> None:
        """`name` is the file's path in `store`; `shown` is its path in this source."""
        self.store = store
        self.name = name
        self.shown = shown

    @property
    def facts(self) -> Facts:
        """The store's own."""
        return self.store.facts

    @property
    def several_channels(self) -> bool:
        """See Store."""
        return self.store.several_channels

    def entry(self) -> Entry:
        """Return the file's entry under its shown name; raise `NotFoundError`."""
        found = self.store.stat(self.name)
        if found is None:
            raise NotFoundError("vanished", "the file no longer exists")
        return found._replace(path=self.shown)

    def list(self) -> Iterator[Entry]:
        """Yield the file."""
        yield self.entry()

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        return read_renamed(self.store.read, units, lambda entry: entry._replace(path=self.name))

    def name_in_store(self, entry: Entry) -> bytes:
        """Return the name of the file in the store."""
        del entry
        return self.name

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        for entry in entries:
            for _, digest, problem in self.store.digest([entry._replace(path=self.name)]):
                yield entry, digest, problem


class GatheredSource(Source):
    """A source with files and folders of a store from several folders, side by side."""

    def __init__(self, store: Store, members: Mapping[bytes, bytes]) -> None:
        """`members` maps names of this source to paths in `store`, of which none is inside another."""
        self.store = store
        self._members = members
        self._shown = {path: name for name, path in members.items()}

    @property
    def facts(self) -> Facts:
        """The store's own."""
        return self.store.facts

    @property
    def several_channels(self) -> bool:
        """See Store."""
        return self.store.several_channels

    def list(self) -> Iterator[Entry]:
        """See Store; the order of the names here is another one."""
        return sort_listing(self._listed())

    def _listed(self) -> Iterator[Entry]:
        try:
            for entry in self.store.list():
                path = self._shown_path(entry.path)
                if path is not None:
                    yield entry._replace(path=path)
        except ListingIncompleteError as problem:
            problem.raise_renamed(self._shown_problem)

    def _shown_problem(self, path: bytes) -> bytes | None:
        """Return the path here of what could not be listed; b"" for a folder above a member."""
        above = any(not path or member.startswith(path + b"/") for member in self._shown)
        return self._shown_path(path) or (b"" if above else None)

    def _shown_path(self, path: bytes) -> bytes | None:
        """Return the path here of a path in the store; None for one outside of all members."""
        for above in (path, *enclosing(path)):
            if above in self._shown:
                return self._shown[above] + path[len(above) :]
        return None

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        return read_renamed(self.store.read, units, self._real)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        for entry, (_, digest, problem) in with_answers(self.store.digest, entries, self._real):
            yield entry, digest, problem

    def name_in_store(self, entry: Entry) -> bytes:
        """Return the path of a file in the store."""
        name, slash, below = entry.path.partition(b"/")
        return self._members[name] + slash + below

    def _real(self, entry: Entry) -> Entry:
        return entry._replace(path=self.name_in_store(entry))


class SingleTarget(Side):
    """A target that lists only one name, for the transfer of a single file."""

    def __init__(self, store: Store, name: bytes) -> None:
        self.store = store
        self._name = name

    @property
    def facts(self) -> Facts:
        """The store's own."""
        return self.store.facts

    def list(self) -> Iterator[Entry]:
        """Yield the file, if it exists."""
        found = self.store.stat(self._name)
        if found is not None:
            yield found

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        return self.store.digest(entries)


class ChosenStore(StoreView):
    """A read-only view of selected files of another store, under other names."""

    def __init__(self, store: Store, chosen: Mapping[bytes, Entry]) -> None:
        """`chosen` maps names in this view to entries that `store` listed."""
        super().__init__(store)
        self._chosen = dict(chosen)

    @property
    def facts(self) -> Facts:
        """The store's facts, without folders, hard links and attributes."""
        return replace(self.store.facts, folders=False, hard_links=False, attributes=False, globus=False)

    def identities(self) -> Sequence[Identity]:
        """Return none: the files are read individually, so overlap with the store's root does not matter."""
        return []

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        if not path:
            return self.store.stat()
        found = self._chosen.get(path)
        return None if found is None else found._replace(path=path)

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store."""
        for path in sorted(self._chosen):
            if not (shallow and b"/" in path):
                yield self._chosen[path]._replace(path=path)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store; returned units have the names of this view."""
        return read_renamed(self.store.read, units, self._real)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        for entry, (_, digest, problem) in with_answers(self.store.digest, entries, self._real):
            yield entry, digest, problem

    def name_in_store(self, entry: Entry) -> bytes:
        """Return the name of a file in the other store."""
        return self._chosen[entry.path].path

    def _real(self, entry: Entry) -> Entry:
        return entry._replace(path=self.name_in_store(entry))

    def _refuse(self, operation: str) -> NoReturn:
        del operation
        raise RefusedError("only-read", "selected files of a store can only be read", subject="source")
