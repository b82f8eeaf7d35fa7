"""Read packs: their indexes, ranges of their tar files, and a packed root as a store of plain files."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeVar

from hibali.errors import IncompleteError, NotFoundError
from hibali.locations import Location
from hibali.text import printable
from hibali_plugins.packs.format import IndexReader, Member, Pack, content_location, name_in
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts
from transfers.model.spool import Spooled, entry_from_list, entry_to_list, sort_on_disk
from transfers.model.store import Store, StoreView, with_answers
from transfers.model.units import SEGMENT_BYTES, Item, ListingIncompleteError, Payload, Problem, Space, Unit
from transfers.pipeline.batches import group_units
from transfers.stores.open_views import packed_root_error

_RUN = 10_000  # number of members that are sorted in memory at a time
_RUN_BYTES = 64 * 1024  # bytes of each sorted run that stay in memory
_IN_MEMORY = 1024 * 1024
_MISSING_TAR = Problem("pack-missing", "its tar file is missing or was replaced")


class Range(NamedTuple):
    """A range of bytes of one pack's tar file."""

    pack: str
    offset: int
    length: int


_Found = tuple[Range, int, Entry]
_Reply = TypeVar("_Reply")


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

        def read(found: Iterator[_Found]) -> Iterator[Payload]:
            return self.store.read(
                Unit((Item(number, tar),), wanted.offset, wanted.length, segment=True, piece=True)
                for wanted, number, tar in found
            )

        for reply in self._request(ranges, read):
            yield reply if isinstance(reply, Problem) else reply.problems.get(0) or reply

    def digests(self, ranges: Iterable[Range]) -> Iterator[str | Problem]:
        """Return the sha256 of each range, computed at the site."""

        def hash_ranges(found: Iterator[_Found]) -> Iterator[tuple[Any, str | None, Problem | None]]:
            return self.store.digest_ranges((tar, wanted.offset, wanted.length) for wanted, _, tar in found)

        for reply in self._request(ranges, hash_ranges):
            yield reply if isinstance(reply, Problem) else reply[2] or reply[1] or _MISSING_TAR

    def _request(
        self, ranges: Iterable[Range], send: Callable[[Iterator[_Found]], Iterator[_Reply]]
    ) -> Iterator[_Reply | Problem]:
        """Send the ranges of existing tar files; yield the replies, and a problem for each missing file."""
        self.load()
        sent: deque[bool] = deque()

        def existing() -> Iterator[_Found]:
            for wanted in ranges:
                number, tar = self._tar_of(wanted)
                sent.append(tar is not None)
                if tar is not None:
                    yield wanted, number, tar

        replies = send(existing())
        while True:
            reply = next(replies, None)
            while sent and not sent.popleft():
                yield _MISSING_TAR
            if reply is None:
                return
            yield reply

    def _tar_of(self, wanted: Range) -> tuple[int, Entry | None]:
        """Return the tar file of a range with its number; None if it is missing or was replaced."""
        number, tar = self._tars.get(wanted.pack, (0, None))
        pack = self._packs.get(wanted.pack)
        return number, tar if tar is not None and pack is not None and tar.size == pack.size else None

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


_AHEAD = 16  # number of pending units without content
_GAP = 64 * 1024  # a smaller gap between two members is read along, which saves a request
_CORRUPT = Problem("corrupt", "its content in the tar file does not match the digest in the index")


@dataclass(slots=True)
class _Part:
    """The location of one item's content within a requested range."""

    position: int
    start: int
    length: int


@dataclass(slots=True)
class _RequestedRange:
    """A requested range and the items in it."""

    wanted: Range
    parts: list[_Part] = field(default_factory=list)


@dataclass(slots=True)
class _Pending:
    """A unit whose ranges were requested."""

    unit: Unit
    left: int
    contents: dict[int, Any] = field(default_factory=dict)
    problems: dict[int, Problem] = field(default_factory=dict)


class MemberReader:
    """A reader of members, for one use."""

    def __init__(self, place: PackedRoot, *, judge: bool = True) -> None:
        """Without `judge`, digests of the actual content are returned and not compared with the index."""
        self._place = place
        self._judge = judge
        self._sums: dict[int, tuple[int, Any]] = {}
        self._failed: set[int] = set()

    def run(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store.read."""
        pending: deque[_Pending] = deque()
        requested: deque[tuple[_Pending, _RequestedRange]] = deque()

        def ranges() -> Iterator[Range]:
            for unit in units:
                wanted = _ranges_of(unit)
                if not wanted and len(pending) >= _AHEAD:
                    # without a request, a store that reads ahead would consume all units
                    any_range = self._place.any_range()
                    wanted = [] if any_range is None else [_RequestedRange(any_range)]
                pending.append(_Pending(unit, len(wanted)))
                for one in wanted:
                    requested.append((pending[-1], one))
                    yield one.wanted

        replies = self._place.read(ranges())
        while True:
            reply = next(replies, None)
            if reply is not None:
                _store_reply(*requested.popleft(), reply)
            while pending and not pending[0].left:
                yield self._payload(pending.popleft())
            if reply is None:
                break
        if pending:
            raise IncompleteError("protocol", "the store returned less than requested")

    def _payload(self, pending: _Pending) -> Payload:
        unit = pending.unit
        payload = Payload(unit, b"", [], [], [], dict(pending.problems))
        contents: list[Any] = []
        for position, item in enumerate(unit.items):
            content = pending.contents.get(position, b"")
            digest, verification = None, Verification.DIGEST
            if item.carries and position not in payload.problems:
                found = self._verify_content(unit, position, content)
                if isinstance(found, Problem):
                    payload.problems[position] = found
                else:
                    digest, verification = found
            if position in payload.problems:
                content = b""
                if unit.segment:
                    self._failed.add(item.number)
            contents.append(content)
            payload.sizes.append(len(content))
            payload.digests.append(digest)
            payload.verifications.append(verification)
        payload.data = contents[0] if len(contents) == 1 else b"".join(contents)
        return payload

    def _verify_content(
        self, unit: Unit, position: int, content: Any
    ) -> tuple[str | None, Verification] | Problem:
        """Compare the content with the digest recorded at packing, as the receiver does, too."""
        item = unit.items[position]
        known = item.entry.digest
        if not unit.segment:
            found = hashlib.sha256(content).hexdigest()
            return self._compared(found, known)
        if unit.piece:
            return None, Verification.NONE
        if item.number in self._failed:
            return Problem("earlier-segment", "an earlier segment of this file failed")
        if unit.offset == 0:
            self._sums[item.number] = (0, hashlib.sha256())
        reached, summed = self._sums.pop(item.number, (-1, None))
        if reached != unit.offset:  # a resumed file: the target already has what is before this
            return (known if unit.last else None), Verification.RECORDED
        summed.update(content)
        if unit.last:
            return self._compared(summed.hexdigest(), known)
        self._sums[item.number] = (reached + len(content), summed)
        return None, Verification.RECORDED

    def _compared(self, found: str, known: str | None) -> tuple[str | None, Verification] | Problem:
        if self._judge and found != known:
            return _CORRUPT
        return found, Verification.RECORDED


def _ranges_of(unit: Unit) -> list[_RequestedRange]:
    """Return the ranges that contain a unit, each in one tar file; small gaps are included."""
    if unit.segment:
        name, start = content_location(unit.items[0].entry)
        return [_RequestedRange(Range(name, start + unit.offset, unit.length), [_Part(0, 0, unit.length)])]
    places = sorted(
        (*content_location(item.entry), position)
        for position, item in enumerate(unit.items)
        if item.carries and item.entry.size
    )
    found: list[_RequestedRange] = []
    for name, offset, position in places:
        size = unit.items[position].entry.size
        before = found[-1].wanted if found else None
        if before is not None and _can_join(before, name, offset, size):
            end = max(before.offset + before.length, offset + size)
            found[-1].wanted = before._replace(length=end - before.offset)
        else:
            found.append(_RequestedRange(Range(name, offset, size)))
        found[-1].parts.append(_Part(position, offset - found[-1].wanted.offset, size))
    return found


def _can_join(before: Range, name: str, offset: int, size: int) -> bool:
    gap_is_small = offset - (before.offset + before.length) <= _GAP
    return before.pack == name and gap_is_small and offset + size - before.offset <= SEGMENT_BYTES


def _store_reply(pending: _Pending, requested: _RequestedRange, reply: Payload | Problem) -> None:
    """Store the result of one range."""
    pending.left -= 1
    for part in requested.parts:
        if isinstance(reply, Problem):
            pending.problems[part.position] = reply
        else:
            content = memoryview(reply.data)[part.start : part.start + part.length]
            pending.contents[part.position] = content


class PackedStore(StoreView):
    """A read-only view of a packed root, or of a folder or file in it."""

    files_apart = False

    def __init__(self, place: PackedRoot, subject: str, below: bytes = b"", *, counts: bool = True) -> None:
        """Create a view of the path `below`; only one of several views `counts` transferred bytes."""
        super().__init__(place.store)
        self.place = place
        self._subject = subject
        self._below = below
        self._counts = counts
        self._stats: dict[bytes, Entry | None] = {}
        if below:
            self.root_path = b"/".join(part for part in (self.root_path, below) if part)

    @property
    def facts(self) -> Facts:
        """The facts of packs; files are verified by the digest that was recorded at packing time."""
        return facts_over(self.store)

    @property
    def wire_bytes(self) -> int:
        """See Store."""
        return self.store.wire_bytes if self._counts else 0

    @property
    def logins(self) -> int:
        """See Store."""
        return self.store.logins if self._counts else 0

    def folder_of_file(self, location: Location) -> PackedStore:
        """See Store; transferred bytes are counted in this view only."""
        del location
        return PackedStore(self.place, self._subject, self._below.rpartition(b"/")[0], counts=False)

    def _inside(self) -> Iterator[Entry]:
        """Yield the entries at and below the root of this view; the root itself has the path b""."""
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

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store."""
        found = False
        for entry in self._inside():
            found = True
            if entry.path and not (shallow and b"/" in entry.path):
                yield entry
        if not found:
            raise NotFoundError("no-such-place", "it does not exist", subject=self._subject)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        return MemberReader(self.place).run(units)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store: computed at the site if it can hash ranges, else from the content that is read."""
        if self.store.can(Store.digest_ranges):
            yield from self._digest_there(entries)
            return
        items = (Item(number, entry) for number, entry in enumerate(entries))
        piece = min(SEGMENT_BYTES, self.facts.segment_bytes)
        failed: dict[int, Problem] = {}
        # group each item alone to keep the order: batches would put large files before small ones
        units = (unit for item in items for unit in group_units([item], lambda: piece))
        for payload in MemberReader(self.place, judge=False).run(units):
            item = payload.unit.items[0]
            problem = failed.pop(item.number, None) or payload.problems.get(0)
            if payload.unit.last:
                yield item.entry, None if problem else payload.digests[0], problem
            elif problem:
                failed[item.number] = problem

    def _digest_there(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        def range_of(entry: Entry) -> Range:
            return Range(*content_location(entry), entry.size)

        for entry, reply in with_answers(self.place.digests, entries, range_of):
            if isinstance(reply, Problem):
                yield entry, None, reply
            else:
                yield entry, reply, None

    def space(self) -> Space:
        """See Store."""
        return Space(None, None)

    def close(self) -> None:
        """See Store."""
        self.place.close()

    def _refuse(self, operation: str) -> NoReturn:
        del operation
        raise packed_root_error(self._subject)


def facts_over(store: Store) -> Facts:
    """Return the facts of packs at a store."""
    facts = store.facts
    return Facts(
        kind="packs",
        read_verification=Verification.RECORDED,
        write_verification=facts.write_verification,
        locks=facts.locks,
        name_bytes=0,
        segment_bytes=facts.segment_bytes,
        writable=facts.writable,
        complete=facts.complete,
        known=facts.known,
    )


def find_packed(
    store: Store, location: Location, depth: int, opener: Callable[[Location], Store]
) -> tuple[Store, Entry | None]:
    """Return a view of the packed files at a location, and the entry there.

    `store` is open at the location; the packed root is `depth` folders above it, and `opener` opens it.
    """
    root = location
    for _ in range(depth):
        root = root.parent
    if depth:
        store.close()
        store = opener(root)
    below = b"/".join(location.raw.split(b"/")[-depth:]) if depth else b""
    view = PackedStore(PackedRoot(store, root.text), location.text, below)
    try:
        return view, view.stat()
    except BaseException:
        view.close()
        raise
