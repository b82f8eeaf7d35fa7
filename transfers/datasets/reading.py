"""Reading the content of annexed files where git-annex keeps it, after getting it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from hibali.locations import Location
from transfers.datasets.annexed import POINTER
from transfers.datasets.contents import Contents
from transfers.entry import Entry, Kind
from transfers.store import Item, Payload, Problem, Store, Unit

Opener = Callable[[Location], Store]

NOT_HERE = "content-not-here"
_AT_ONCE = 256


class ContentReading:
    """What a store reads, with files looked through to their content; that is reached by a store around all of it."""

    def __init__(
        self, contents: Contents, location: Location, opener: Opener, *, brings: bool = True
    ) -> None:
        """Without `brings` nothing is got."""
        self._contents = contents
        self._location = location
        self._opener = opener
        self._brings = brings
        self._around: Store | None = None

    def bring(self, entries: Iterable[Entry]) -> None:
        """Get the content of these, as far as it is not here; what cannot be got is told when it is read."""
        if self._brings:
            self._contents.bring(entry.path for entry in entries if entry.kind is Kind.FILE)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store; content that is not here is a problem of its item."""
        asked: deque[Unit] = deque()

        def placed() -> Iterator[Unit]:
            for unit in units:
                # not everybody says before what is going to be read
                self.bring(item.entry for item in unit.items)
                known = replace(unit, items=tuple(self._as_got(item) for item in unit.items))
                asked.append(known)
                items = (replace(item, entry=self._placed(item.entry)) for item in known.items)
                yield replace(known, items=tuple(items))

        for payload in self._store().read(placed()):
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
        if entry.link.startswith(POINTER):
            entry = entry._replace(mtime_ns=content.status.st_mtime_ns)
        return replace(item, entry=entry._replace(mode=content.status.st_mode & 0o777))

    def _placed(self, entry: Entry) -> Entry:
        """The same under the name of its content, with the time that has, which the reader holds it to."""
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
        """See Store; content that is not here is got first, for a key alone proves nothing in this call."""
        coming = iter(entries)
        while some := list(islice(coming, _AT_ONCE)):
            self.bring(some)
            here = [self._contents.find(entry.path) is not None for entry in some]
            present = [entry for entry, is_here in zip(some, here, strict=True) if is_here]
            computed = self._store().digest(self._placed(entry) for entry in present)
            for entry, is_here in zip(some, here, strict=True):
                if is_here:
                    _, digest, problem = next(computed)
                    yield entry, digest, problem
                else:
                    yield entry, None, self._missing(entry.path)
            for _ in computed:  # up to the end of the answer
                pass

    def close(self) -> None:
        """Let go of the store; safe to call twice."""
        if self._around is not None:
            self._around.close()
