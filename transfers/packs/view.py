"""A packed place as a store to read from: the members of its packs instead of the tar files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NoReturn

from hibali.errors import NotFoundError, RefusedError
from transfers.agent.identity import Identity
from transfers.entry import Entry, Kind, Proof
from transfers.only_read import OnlyRead
from transfers.overlap import identities_of
from transfers.packing import group_units
from transfers.packs.index import place_of
from transfers.packs.place import HashesRanges, PackedPlace, Range
from transfers.packs.reading import MemberReading
from transfers.store import (
    SEGMENT_BYTES,
    Facts,
    Item,
    Lock,
    Payload,
    Problem,
    Space,
    Store,
    Unit,
)

_Identities = list[Identity]  # inside the class `list` is a method


class PackedStore(OnlyRead):
    """The Store protocol over a packed place or a folder or file in it (transfers.store.Store); it is only read."""

    def __init__(self, place: PackedPlace, about: str, below: bytes = b"", *, counts: bool = True) -> None:
        """`below` is a path in the place. Of several views of one place, one `counts` what goes over the wire."""
        self.place = place
        self._about = about
        self._below = below
        self._counts = counts
        self._stats: dict[bytes, Entry | None] = {}
        where = place.store.where
        self.where = b"/".join(part for part in (where, below) if part) if below else where

    @property
    def facts(self) -> Facts:
        """Packs hold all that a filesystem does; what is proven is proven by what was recorded when they were made."""
        return facts_over(self.place.store)

    @property
    def wire_bytes(self) -> int:
        """See Store."""
        return self.place.store.wire_bytes if self._counts else 0

    @property
    def logins(self) -> int:
        """See Store."""
        return self.place.store.logins if self._counts else 0

    @property
    def limited_by(self) -> str | None:
        """See Store."""
        return self.place.store.limited_by

    def identities(self) -> _Identities:
        """See Identified: the place with all its packs, because what is in a pack has no folder of its own."""
        return identities_of(self.place.store)

    def parent(self) -> PackedStore:
        """A view of the folder that holds this one's file; what goes over the wire is counted here."""
        return PackedStore(self.place, self._about, self._below.rpartition(b"/")[0], counts=False)

    def _inside(self) -> Iterator[Entry]:
        """What lies at or below the root of this view, that itself as b""."""
        if not self._below:
            yield Entry(b"", Kind.FOLDER)
            yield from self.place.members()
            return
        start = self._below + b"/"
        for entry in self.place.members():
            if entry.path == self._below:
                yield entry._replace(path=b"")
            elif entry.path.startswith(start):
                yield entry._replace(path=entry.path[len(start) :])
            elif entry.order > start and not entry.order.startswith(self._below):
                return

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        if path not in self._stats:
            self._stats[path] = next((entry for entry in self._inside() if entry.path == path), None)
        return self._stats[path]

    def take_attributes(self) -> bool:
        """See Store: packs hold none."""
        return False

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store."""
        found = False
        for entry in self._inside():
            found = True
            if entry.path and not (shallow and b"/" in entry.path):
                yield entry
        if not found:
            raise NotFoundError("no-such-place", "there is nothing there", about=self._about)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        return MemberReading(self.place).run(units)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store: by whoever has the tar files, or else their ranges are read."""
        if isinstance(self.place.store, HashesRanges):
            yield from self._digest_there(self.place.store, entries)
            return
        items = (Item(number, entry) for number, entry in enumerate(entries))
        piece = min(SEGMENT_BYTES, self.facts.segment_bytes)
        failed: dict[int, Problem] = {}
        # in the order asked: a large file would overtake the small ones before it
        units = (unit for item in items for unit in group_units([item], lambda: piece))
        for payload in MemberReading(self.place, judge=False).run(units):
            item = payload.unit.items[0]
            problem = failed.pop(item.number, None) or payload.problems.get(0)
            if payload.unit.last:
                yield item.entry, None if problem else payload.digests[0], problem
            elif problem:
                failed[item.number] = problem

    def _digest_there(
        self, hashing: HashesRanges, entries: Iterable[Entry]
    ) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        asked: deque[Entry] = deque()

        def ranges() -> Iterator[Range]:
            for entry in entries:
                asked.append(entry)
                yield Range(*place_of(entry), entry.size)

        for answer in self.place.digests(hashing, ranges()):
            if isinstance(answer, Problem):
                yield asked.popleft(), None, answer
            else:
                yield asked.popleft(), answer, None

    def expect(self, size: int) -> None:
        """See Store."""
        self.place.store.expect(size)

    def begun(self, item: Item) -> int:
        """See Store."""
        del item
        return 0

    def lock(self, operation: str, *, make: bool = False) -> Lock:
        """See Store: a view is only read."""
        del operation, make
        self._refuse()

    def space(self) -> Space:
        """See Store."""
        return Space(None, None)

    def close(self) -> None:
        """See Store."""
        self.place.close()

    def _refuse(self) -> NoReturn:
        raise packed_already(self._about)


def facts_over(store: Store) -> Facts:
    """What packs at a store can hold."""
    facts = store.facts
    return Facts(
        kind="packs",
        proof_read=Proof.RECORDED,
        proof_write=facts.proof_write,
        locks=facts.locks,
        name_bytes=0,
        segment_bytes=facts.segment_bytes,
        writable=facts.writable,
        complete=facts.complete,
        known=facts.known,
    )


def packed_already(about: str) -> RefusedError:
    """Files by themselves do not go among packs."""
    return RefusedError(
        "packed-place",
        "the files at this place are packed, and others do not go among them",
        about=about,
        hint="To put them into packs: --pack. To have them as they are, name another place. Nothing was changed.",
    )
