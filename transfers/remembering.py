"""Digests of one side from the record, where its files are what they were, and computed for the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from hibali.locations import Location
from transfers.digest_book import DigestBook
from transfers.entry import Entry
from transfers.mover import Side
from transfers.store import Facts, Problem

_AT_ONCE = 1024  # so many are looked up before those among them that are not on record are hashed


class RememberingSide:
    """A side whose digests are asked for only once; `used` says whether any came from the record."""

    def __init__(self, side: Side, location: Location, where: bytes) -> None:
        """`where` is the root as its site knows it. What is computed here is on record for `manifest --recorded`, too."""
        self._side = side
        place = [location.site.name, location.bucket, where.decode("utf-8", "surrogateescape")]
        self._book = DigestBook("digests", place, keep=True)
        self.used = False

    @property
    def facts(self) -> Facts:
        """The side's own."""
        return self._side.facts

    def list(self) -> Iterator[Entry]:
        """See Store."""
        return self._side.list()

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store; of a file that is on record and is what it was nothing is read."""
        coming = iter(entries)
        while some := list(islice(coming, _AT_ONCE)):
            known = [entry.digest or self._book.find([entry]) for entry in some]
            self.used = self.used or any(known)
            unknown = [entry for entry, digest in zip(some, known, strict=True) if digest is None]
            computed = self._computed(unknown) if unknown else iter(())
            for entry, digest in zip(some, known, strict=True):
                yield next(computed) if digest is None else (entry, digest, None)
            for _ in computed:  # up to the end of the answer
                pass

    def _computed(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        for entry, digest, problem in self._side.digest(entries):
            if digest is not None:
                self._book.add([entry], digest)
            yield entry, digest, problem

    def close(self) -> None:
        """Keep what was computed; safe to call twice."""
        self._book.close()
