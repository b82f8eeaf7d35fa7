"""A packed place as a target: what its packs hold is compared with, and new packs are put beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import cast

from hibali.errors import RefusedError
from transfers.entry import Entry, Kind
from transfers.packing import group_units
from transfers.packs.index import Member, Pack, index_path, name_in, pack_name, write_index
from transfers.packs.place import PackedPlace
from transfers.packs.seeing import TellsPacks, is_packed
from transfers.packs.view import PackedStore, packed_already
from transfers.packs.writing import land, payloads_of
from transfers.store import SEGMENT_BYTES, Item, Landed, Lock, Problem, Space, Store

_GONE = 20_000  # so many names in one index that only says what is gone
_LOST = Problem("not-answered", "the store did not say what became of it")


class PackedTarget(PackedStore):
    """The Store protocol over a place that is packed or is going to be; only the mover of packs puts anything there."""

    def __init__(self, place: PackedPlace, about: str) -> None:
        super().__init__(place, about)
        self._store = place.store
        self._generation = 0
        self.made: set[str] = set()

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        return super().stat(path) if path else self._store.stat()

    def make_root(self) -> None:
        """See Store."""
        self._store.make_root()

    def lock(self, operation: str, *, make: bool = False) -> Lock:
        """See Store."""
        return self._store.lock(operation, make=make)

    def space(self) -> Space:
        """See Store: a file more is not a name more."""
        return Space(self._store.space().free_bytes, None)

    def next_generation(self) -> int:
        """A number greater than that of every pack there is."""
        self._generation = max(self._generation + 1, self.place.next_generation)
        return self._generation

    def land_index(self, pack: Pack, members: Iterable[Member], mtime_ns: int = 0) -> Landed:
        """Put the index of a pack beside it: from then on the pack counts."""
        content = write_index(pack, members)
        entry = Entry(index_path(pack.name), Kind.FILE, len(content), mtime_ns, 0o644)
        item = Item(pack.generation, entry)
        piece = min(SEGMENT_BYTES, self._store.facts.segment_bytes)
        units = group_units([item], lambda: piece)
        landed = land(self._store, payloads_of(content, units))
        if landed is not None and landed.problem is None:
            self.made.add(pack.name)
        return landed or Landed(item, None, self.facts.proof_write, problem=_LOST)

    def below(self, folders: set[bytes]) -> Iterator[Entry]:
        """What the packs hold below these folders, and the folders themselves."""
        for entry in self.place.members() if folders else ():
            parts = entry.path.split(b"/")
            if any(b"/".join(parts[:count]) in folders for count in range(1, len(parts))) or (
                entry.kind is Kind.FOLDER and entry.path in folders
            ):
                yield entry

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store: a further index says that they are gone; the tar files stay as they are."""
        coming = iter(entries)
        while some := list(islice(coming, _GONE)):
            generation = self.next_generation()
            pack = Pack(pack_name(generation, f"{0:016x}"))
            problem = self.land_index(pack, (Member(entry, generation, gone=True) for entry in some)).problem
            for entry in some:
                yield entry, problem

    def clean(self) -> None:
        """Remove tar files that an interrupted call left without their index."""
        own = {name_in(entry.path, index=False): entry for entry in self.place.leftovers()}
        left = [entry for name, entry in own.items() if name not in self.made]
        for _ in self._store.remove(left):  # what stays is named as a leftover again next time
            pass


def open_target(store: Store, about: str) -> Store:
    """The place at the root of a store, to be packed. Raises `RefusedError` (8) where other files are."""
    if isinstance(store, TellsPacks) and store.packed_at not in {None, store.where}:
        raise packed_already(about)  # above it
    standing = store.stat()
    known = standing is not None and standing.kind is Kind.FOLDER and is_packed(store)
    if standing is not None and standing.kind is Kind.FOLDER and not known:
        # a first pack that was interrupted has no index yet
        foreign = [entry for entry in store.list(shallow=True) if name_in(entry.path, index=False) is None]
        if foreign:
            raise RefusedError(
                "not-packed",
                "files by themselves are at this place, and packs do not go among them",
                about=about,
                hint="Name a new or an empty folder, or leave out --pack. Nothing was changed.",
            )
    return cast("Store", PackedTarget(PackedPlace(store, about, known=known), about))
