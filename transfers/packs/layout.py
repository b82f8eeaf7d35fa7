"""What goes into one pack and where in its tar file each member lies, decided before anything is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from transfers.entry import Entry, Kind
from transfers.packing import group_units
from transfers.packs.index import pack_name, tar_path
from transfers.packs.tar import end_of, header_of, padding
from transfers.store import Item, Unit

LARGE_BYTES = 32 * 1024 * 1024  # a file above this has a pack of its own
LEAST_BYTES = 1024 * 1024
MEMBERS = 20_000  # in one pack: what is held in memory of it
_NAMES_BYTES = 8 * 1024 * 1024  # the names in one pack together


@dataclass(frozen=True, slots=True)
class Layout:
    """One pack: `units` are what is asked of the source, and their order is that of the members.

    `offsets` has where an item's content begins, by its number. A large file is `alone`: it streams.
    """

    name: str
    tar: Entry
    units: tuple[Unit, ...]
    offsets: dict[int, int]
    alone: bool


def gather(items: Iterable[Item], pack_bytes: int) -> Iterator[list[Item]]:
    """The items of each pack, in their order but for large files, so that what is left after an interruption is packed as before."""
    some: list[Item] = []
    size = names = 0
    for item in items:
        if item.entry.size > LARGE_BYTES and item.entry.kind is Kind.FILE:
            yield [item]
            continue
        length = item.entry.size + 2048
        named = len(item.entry.path) + len(item.entry.link)
        if some and (size + length > pack_bytes or names + named > _NAMES_BYTES or len(some) >= MEMBERS):
            yield some
            some, size, names = [], 0, 0
        some.append(item)
        size += length
        names += named
    if some:
        yield some


def lay_out(items: list[Item], generation: int, piece: int) -> Layout:
    """Where everything lies. The tar file is named by what goes into it and has the time of the newest of it."""
    units = tuple(group_units(items, lambda: piece))
    offsets: dict[int, int] = {}
    summed = hashlib.sha256()
    size = newest = 0
    for item in ordered(units):
        header = header_of(item.entry)
        summed.update(header)
        offsets[item.number] = size + len(header)
        size += len(header) + item.entry.size + len(padding(item.entry.size))
        newest = max(newest, item.entry.mtime_ns)
    name = pack_name(generation, summed.hexdigest())
    tar = Entry(tar_path(name), Kind.FILE, size + len(end_of(size)), newest, 0o644)
    alone = len(items) == 1 and items[0].entry.size > LARGE_BYTES
    return Layout(name, tar, units, offsets, alone)


def ordered(units: Iterable[Unit]) -> Iterator[Item]:
    """Each item once, as units bring them."""
    for unit in units:
        if unit.offset == 0:
            yield from unit.items
