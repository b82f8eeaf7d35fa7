"""What a store offers where single files come and go in many folders of it, over one connection that is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from transfers.copying import Copier, Origin
from transfers.entry import Entry
from transfers.store import Item, Landed, Payload, Problem, Store, Unit


@runtime_checkable
class Shelving(Protocol):
    """A store that lends out its folders one by one, so that others can be at work in the next one."""

    def shelf(self, folder: bytes) -> tuple[Store, bytes]:
        """A store of that folder (b"" is the root) over the connection there is, and the folder's path in it.

        It is locked and written to as any other, and not closed. It is good until anything else is asked of the store that
        lent it out. Where the path is b"" the lock is that of the folder alone; else files land without any.
        """


@runtime_checkable
class StoresWhole(Protocol):
    """A store that finds, takes, gives and removes one small file by a single request each and without a lock.

    For contents that only ever appear whole under a name of their own, as those of git-annex: a lock and a journal for each
    take several times as long as the content.
    """

    def find_whole(self, path: bytes) -> Entry | None:
        """What is at `path` (b"" is the root), never remembered from an earlier request."""

    def store_whole(self, entry: Entry, content: bytes) -> bool:
        """Store `content` at `entry.path`, durable and hashed at both ends; missing folders are made.

        Returns:
            False, and nothing was changed, where the name exists or the filesystem cannot do that without a lock.
        """

    def fetch_whole(self, entry: Entry) -> bytes:
        """The content of a file of at most a pack's size. Raises `IncompleteError` where it is not of the size listed."""

    def remove_whole(self, entry: Entry) -> Problem | None:
        """Remove a file that still is what was listed; an absent one is done."""


def named_anew(store: Store, entry: Entry, name: bytes) -> Iterator[Landed] | None:
    """Land a file of the locked store under a further name there, without its bytes travelling; None where it cannot do that."""
    if isinstance(store, Copier) and store.copies(store):
        return store.copy(Origin(store, entry.path), [Item(0, entry._replace(path=name))])
    if not store.facts.hard_links:
        return None
    further = Item(0, entry._replace(path=name, same_as=entry.path))
    return store.write([Payload(Unit((further,)), b"", [0], [None])])
