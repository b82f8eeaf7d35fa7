"""One file by itself, perhaps under another name at the target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hibali.errors import NotFoundError
from transfers.entry import Entry
from transfers.mover import OverLines
from transfers.store import Facts, Payload, Problem, Store, Unit


class SingleSource:
    """The reading half of the Store protocol for one file."""

    def __init__(self, store: Store, name: bytes, shown: bytes) -> None:
        """`store` is the folder that holds `name`; everybody else knows the file as `shown`."""
        self.store = store
        self.name = name
        self.shown = shown

    @property
    def facts(self) -> Facts:
        """The store's own."""
        return self.store.facts

    @property
    def several_lines(self) -> bool:
        """See OverLines."""
        return isinstance(self.store, OverLines) and self.store.several_lines

    def entry(self) -> Entry:
        """The file under its shown name; raises `NotFoundError`."""
        found = self.store.stat(self.name)
        if found is None:
            raise NotFoundError("vanished", "the file is no longer there")
        return found._replace(path=self.shown)

    def list(self) -> Iterator[Entry]:
        """Just that file."""
        yield self.entry()

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        asked: list[Unit] = []

        def renamed() -> Iterator[Unit]:
            for unit in units:
                asked.append(unit)
                items = tuple(replace(i, entry=i.entry._replace(path=self.name)) for i in unit.items)
                yield replace(unit, items=items)

        for payload in self.store.read(renamed()):
            payload.unit = asked.pop(0)
            yield payload

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        for entry in entries:
            for _, digest, problem in self.store.digest([entry._replace(path=self.name)]):
                yield entry, digest, problem


class SingleTarget:
    """A target that lists only one name, because a single file is all that goes there."""

    def __init__(self, store: Store, name: bytes) -> None:
        self._store = store
        self._name = name

    @property
    def facts(self) -> Facts:
        """The store's own."""
        return self._store.facts

    def list(self) -> Iterator[Entry]:
        """That name where it stands."""
        found = self._store.stat(self._name)
        if found is not None:
            yield found

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        return self._store.digest(entries)
