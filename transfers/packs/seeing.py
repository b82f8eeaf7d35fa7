"""Which places are packed, and opening those so that what is packed is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast, runtime_checkable

from hibali.locations import Location
from transfers.entry import Kind
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
    """Opens places, looking through packs; one packed place is read once, however often it is opened."""

    def __init__(self, opener: Opener) -> None:
        """`opener` opens a place as it is."""
        self._opener = opener
        self._places: dict[tuple[str, str | None, bytes], PackedPlace] = {}

    def open(self, location: Location) -> Store:
        """The store at a location; where that is packed or lies in a packed place, a view of what is packed."""
        store = self._opener(location)
        depth = self._depth(store, location)
        if depth is None:
            return store
        root = location
        for _ in range(depth):
            root = root.parent
        if depth:
            store.close()
            store = self._opener(root)
        below = b"/".join(location.raw.split(b"/")[-depth:]) if depth else b""
        key = (location.site.name, location.bucket, store.where)
        known = self._places.get(key)
        if known is not None:
            store.close()
        place = known or self._places.setdefault(key, PackedPlace(store, root.text))
        return cast("Store", PackedStore(place, location.text, below, counts=known is None))

    def _depth(self, store: Store, location: Location) -> int | None:
        """How many components below the root of a packed place this is; None where it is in none."""
        if isinstance(store, TellsPacks):
            if store.packed_at is None:
                return None
            below = store.where[len(store.packed_at) :].strip(b"/")
            return len(below.split(b"/")) if below else 0
        return self._looked_for(store, location)

    def _looked_for(self, store: Store, location: Location) -> int | None:
        """The same by asking: what is in packs has no folder of its own, so the nearest folder that exists has to be the place."""
        if store.stat() is not None:
            return 0 if is_packed(store) else None
        depth, here = 0, location
        while here.path and here.parent.path != here.path:
            depth, here = depth + 1, here.parent
            above = self._opener(here)
            try:
                if above.stat() is not None:
                    return depth if is_packed(above) else None
            finally:
                above.close()
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
