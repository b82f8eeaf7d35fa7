"""Read the indexes of a packed root and ranges of its tar files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from hibali.errors import IncompleteError
from hibali.text import printable
from transfers.entry import Entry, Kind
from transfers.packs.format import IndexReader, Member, Pack, content_location, name_in
from transfers.pipeline.batches import group_units
from transfers.spool import Spooled, entry_from_list, entry_to_list, sort_on_disk
from transfers.stores.base import SEGMENT_BYTES, Item, ListingIncompleteError, Payload, Problem, Store, Unit

_RUN = 10_000  # number of members that are sorted in memory at a time
_RUN_BYTES = 64 * 1024  # bytes of each sorted run that stay in memory
_IN_MEMORY = 8 * 1024 * 1024
_MISSING_TAR = Problem("pack-missing", "its tar file is missing or was replaced")


class Range(NamedTuple):
    """A range of bytes of one pack's tar file."""

    pack: str
    offset: int
    length: int


class MemberSpool(Spooled[Member]):
    """The members of a packed root."""

    def _pack(self, value: Member) -> list[Any]:
        return [entry_to_list(value.entry), value.generation, value.deleted]

    def _unpack(self, fields: list[Any]) -> Member:
        entry, generation, deleted = fields
        return Member(entry_from_list(entry), generation, deleted)


class PackedRoot:
    """The packs below the root of a store, read at first use and then cached. For one thread only."""

    def __init__(self, store: Store, subject: str, *, known: bool = True) -> None:
        """Keep the store; `subject` is for messages, `known` whether the root is known to be packed."""
        self._known = known
        self.store = store
        self._subject = subject
        self._members = MemberSpool(_IN_MEMORY)
        self._tars: dict[str, tuple[int, Entry]] = {}
        self._packs: dict[str, Pack] = {}
        self._loaded = False

    @property
    def next_generation(self) -> int:
        """The number of the next pack."""
        self.load()
        return max((pack.generation for pack in self._packs.values()), default=0) + 1

    def leftovers(self) -> list[Entry]:
        """Return tar files without an index, which were not finished."""
        self.load()
        return [entry for name, (_, entry) in self._tars.items() if name not in self._packs]

    def load(self) -> None:
        """Read all indexes. Raises `IncompleteError` for an unreadable or invalid one."""
        if self._loaded:
            return
        indexes: list[tuple[str, Entry]] = []
        try:
            for entry in self.store.list():
                self._sort_entry(entry, indexes)
        except ListingIncompleteError as problem:
            raise IncompleteError(problem.code, problem.message, subject=problem.subject) from None
        if self._known and not indexes:
            raise self._hidden()
        ordered = sort_on_disk(self._read(indexes), _rank, lambda: MemberSpool(_RUN_BYTES), _RUN)
        before = b""
        for member in ordered:
            if member.entry.order != before and not member.deleted:
                self._members.add(member)
            before = member.entry.order
        self._loaded = True

    def _sort_entry(self, entry: Entry, indexes: list[tuple[str, Entry]]) -> None:
        if entry.kind is not Kind.FILE:
            return
        tar, index = name_in(entry.path, index=False), name_in(entry.path, index=True)
        if tar is not None:
            # a unique number, because readers identify files by number
            self._tars[tar] = (len(self._tars) + 1_000_000_000, entry)
        elif index is not None:
            indexes.append((index, entry))

    def _read(self, indexes: list[tuple[str, Entry]]) -> Iterator[Member]:
        """Read and merge the indexes."""
        items = [Item(number, entry) for number, (_, entry) in enumerate(indexes)]
        piece = min(SEGMENT_BYTES, self.store.facts.segment_bytes)
        reader: IndexReader | None = None
        for payload in self.store.read(group_units(items, lambda: piece)):
            start = 0
            for position, (item, size) in enumerate(zip(payload.unit.items, payload.sizes, strict=True)):
                if position in payload.problems:
                    raise self._unread(item.entry, payload.problems[position])
                name = indexes[item.number][0]
                if payload.unit.offset == 0:
                    reader = IndexReader(name, self._subject)
                assert reader is not None  # segments come in order
                yield from reader.feed(bytes(payload.data[start : start + size]))
                start += size
                if payload.unit.last:
                    self._packs[name] = reader.end()

    def _hidden(self) -> IncompleteError:
        return IncompleteError(
            "bad-index",
            "this location is packed, but the server does not list the indexes of the packs",
            subject=self._subject,
            hint="Web servers often hide names that start with a dot. Read the location over ssh.",
        )

    def _unread(self, entry: Entry, problem: Problem) -> IncompleteError:
        subject = f"{self._subject}/{printable(entry.path)}"
        return IncompleteError("bad-index", f"this index cannot be read: {problem.message}", subject=subject)

    def members(self) -> Iterator[Entry]:
        """Return the entries in the packs, in canonical order, with all parent folders."""
        self.load()
        above: list[bytes] = []
        for member in self._members:
            entry = member.entry
            if entry.kind is Kind.FILE and entry.size:
                entry = entry._replace(offline=self._is_offline(content_location(entry)[0]))
            while above and not entry.path.startswith(above[-1]):
                above.pop()
            start = len(above[-1]) if above else 0
            while (end := entry.path.find(b"/", start)) >= 0:
                start = end + 1
                above.append(entry.path[:start])
                yield Entry(entry.path[:end], Kind.FOLDER)
            if entry.kind is Kind.FOLDER:
                above.append(entry.order)
            yield entry

    def _is_offline(self, pack: str) -> bool:
        """Return whether reading a member would fetch its tar file from tape."""
        _, tar = self._tars.get(pack, (0, None))
        return tar is not None and tar.offline

    def read(self, ranges: Iterable[Range]) -> Iterator[Payload | Problem]:
        """Yield the bytes of each range in the given order, with read-ahead."""
        self.load()
        pending: deque[Problem | None] = deque()

        def units() -> Iterator[Unit]:
            for wanted in ranges:
                number, tar = self._tar_of(wanted)
                pending.append(None if tar else _MISSING_TAR)
                if tar is None:
                    continue
                items = (Item(number, tar),)
                yield Unit(items, wanted.offset, wanted.length, segment=True, piece=True)

        replies = self.store.read(units())
        while True:
            payload = next(replies, None)
            while pending and (lost := pending.popleft()) is not None:
                yield lost
            if payload is None:
                return
            yield payload.problems.get(0) or payload

    def _tar_of(self, wanted: Range) -> tuple[int, Entry | None]:
        """Return the tar file of a range with its number; None if it is missing or was replaced."""
        number, tar = self._tars.get(wanted.pack, (0, None))
        pack = self._packs.get(wanted.pack)
        return number, tar if tar is not None and pack is not None and tar.size == pack.size else None

    def digests(self, ranges: Iterable[Range]) -> Iterator[str | Problem]:
        """Return the sha256 of each range, computed at the site."""
        self.load()
        pending: deque[Problem | None] = deque()

        def stretches() -> Iterator[tuple[Entry, int, int]]:
            for wanted in ranges:
                tar = self._tar_of(wanted)[1]
                pending.append(None if tar else _MISSING_TAR)
                if tar is not None:
                    yield tar, wanted.offset, wanted.length

        replies = self.store.digest_ranges(stretches())
        while True:
            reply = next(replies, None)
            while pending and (lost := pending.popleft()) is not None:
                yield lost
            if reply is None:
                return
            yield reply[2] or reply[1] or _MISSING_TAR

    def any_range(self) -> Range | None:
        """Return a small range that can be read, if there is one."""
        self.load()
        sound = (p for p in self._packs.values() if p.digest and p.name in self._tars)
        return next((Range(p.name, 0, 1) for p in sound if self._tars[p.name][1].size == p.size), None)

    def close(self) -> None:
        """Release the store and what was read; safe to call twice."""
        self.store.close()
        self._members.close()


def _rank(member: Member) -> tuple[bytes, int]:
    return member.entry.order, -member.generation
