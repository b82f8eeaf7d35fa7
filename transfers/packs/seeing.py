"""Which places are packed, and opening those so that what is packed is seen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Protocol, cast, runtime_checkable

from hibali.locations import Location
from transfers.entry import Entry, Kind
from transfers.packs.index import FOLDER
from transfers.packs.place import PackedPlace
from transfers.packs.view import PackedStore, packed_already
from transfers.store import Store

Opener = Callable[[Location], Store]


@runtime_checkable
class TellsPacks(Protocol):
    """A store that was told by the way whether its root lies in a packed place."""

    packed_at: bytes | None  # where that place is, as `Store.where`


class Seeing:
    """Opens places, looking through packs."""

    def __init__(self, opener: Opener) -> None:
        """`opener` opens a place as it is."""
        self._opener = opener

    def find(self, location: Location) -> tuple[Store, Entry | None]:
        """The store at a location and what stands there, which every caller has to know.

        Where that is a packed place or lies in one, the store is a view of what is packed.
        """
        store = self._opener(location)
        try:
            found = store.stat()
            depth = self._depth(store, found, location)
        except BaseException:
            store.close()
            raise
        return (store, found) if depth is None else self._view(store, location, depth)

    def _view(self, store: Store, location: Location, depth: int) -> tuple[Store, Entry | None]:
        root = location
        for _ in range(depth):
            root = root.parent
        if depth:
            store.close()
            store = self._opener(root)
        below = b"/".join(location.raw.split(b"/")[-depth:]) if depth else b""
        view = PackedStore(PackedPlace(store, root.text), location.text, below)
        try:
            return cast("Store", view), view.stat()
        except BaseException:
            view.close()
            raise

    def parent(self, store: Store, location: Location) -> Store:
        """The folder of a file that `find` found in `store`."""
        if isinstance(store, PackedStore):
            return cast("Store", store.parent())
        return self._opener(location.parent)

    def _depth(self, store: Store, found: Entry | None, location: Location) -> int | None:
        """How many components below the root of a packed place this is; None where it is in none."""
        if isinstance(store, TellsPacks):
            if store.packed_at is None:
                return None
            below = store.where[len(store.packed_at) :].strip(b"/")
            return len(below.split(b"/")) if below else 0
        if found is not None:
            return 0 if found.kind is Kind.FOLDER and is_packed(store) else None
        return self._looked_for(location)

    def _looked_for(self, location: Location) -> int | None:
        """The same by asking: what is in packs has no folder of its own, so the nearest folder that exists has to be the place."""
        depth, here = 0, location
        while here.path and here.parent.path != here.path:
            depth, here = depth + 1, here.parent
            with closing(self._opener(here)) as above:
                if above.stat() is not None:
                    return depth if is_packed(above) else None
        return None


def is_packed(store: Store) -> bool:
    """Whether there are packs at the root of a store."""
    if isinstance(store, TellsPacks):
        return store.packed_at == store.where
    found = store.stat(FOLDER)
    return found is not None and found.kind is Kind.FOLDER


def refuse_packed(store: Store, about: str) -> None:
    """Raise `RefusedError` where files by themselves would come among packs."""
    if store.packed_at is not None if isinstance(store, TellsPacks) else is_packed(store):
        raise packed_already(about)
