"""Copies that a server makes by itself: what a store offers that can take entries from another without their bytes passing us."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from transfers.entry import Entry
from transfers.store import Item, Landed, Store

NOT_COPIED = "not-copied"  # the code of a problem: the server would not, nothing was changed, the bytes may go through us


@dataclass(frozen=True, slots=True)
class Origin:
    """Where copies come from: a store, and the name there where it is one file that may have another at the target."""

    store: Store
    name: bytes | None = None

    def entry(self, item: Item) -> Entry:
        """What an item is at its source."""
        return item.entry if self.name is None else item.entry._replace(path=self.name)


@runtime_checkable
class Copier(Protocol):
    """The part of a Store that some have: it can be told to fetch entries from a store next door."""

    def copies(self, source: Store) -> bool:
        """Whether that is worth trying from `source`; the server has the last word, entry by entry."""

    def copy(self, origin: Origin, items: Iterable[Item]) -> Generator[Landed, None, None]:
        """Copy files whole; one answer for each, in any order, as `Store.write` gives them.

        The source is copied only while it is what was listed. `Landed.proof` is that of the whole copy: RECORDED
        where a digest is on record for the source and the server names the same sum for the copy, else weaker.
        A problem of the code `NOT_COPIED` says that the server would not. Closing it ends what is under way.
        """
