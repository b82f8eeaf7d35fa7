"""Read a packed root as a store: the members of its packs appear as files."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NoReturn

from hibali.errors import IncompleteError, NotFoundError, RefusedError
from hibali.locations import Location
from transfers.entry import Entry, Kind, Verification
from transfers.packs.format import FOLDER, content_location
from transfers.packs.place import PackedRoot, Range
from transfers.pipeline.batches import group_units
from transfers.stores.base import (
    SEGMENT_BYTES,
    Facts,
    Item,
    Payload,
    Problem,
    Space,
    Store,
    StoreView,
    Unit,
)

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
        """The facts of packs; the proof is the digest that was recorded at packing time."""
        return facts_over(self.store)

    @property
    def wire_bytes(self) -> int:
        """See Store."""
        return self.store.wire_bytes if self._counts else 0

    @property
    def logins(self) -> int:
        """See Store."""
        return self.store.logins if self._counts else 0

    def parent(self) -> PackedStore:
        """Return a view of the parent folder; transferred bytes are counted in this view only."""
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
            raise NotFoundError("no-such-place", "there is nothing there", subject=self._subject)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        return MemberReader(self.place).run(units)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store: computed at the site if it can hash ranges, else from the content that is read."""
        if self.store.facts.hashes_ranges:
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
        requested: deque[Entry] = deque()

        def ranges() -> Iterator[Range]:
            for entry in entries:
                requested.append(entry)
                yield Range(*content_location(entry), entry.size)

        for reply in self.place.digests(ranges()):
            if isinstance(reply, Problem):
                yield requested.popleft(), None, reply
            else:
                yield requested.popleft(), reply, None

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
        machine=facts.machine,
    )


def packed_root_error(subject: str) -> RefusedError:
    """Return the error for writing plain files to a packed root."""
    return RefusedError(
        "packed-place",
        "this location is packed; plain files cannot be added",
        subject=subject,
        hint="To write packs, add --pack. For plain files, name another target. Nothing was changed.",
    )


Opener = Callable[[Location], Store]


class PackAwareOpener:
    """A factory of stores that shows packs as plain files."""

    def __init__(self, opener: Opener) -> None:
        """Keep `opener`, which opens a location without looking into packs."""
        self._opener = opener

    def find(self, location: Location) -> tuple[Store, Entry | None]:
        """Return the store at a location, and the entry there, which every caller needs.

        At or in a packed root, the store is a view of the packed files.
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
        view = PackedStore(PackedRoot(store, root.text), location.text, below)
        try:
            return view, view.stat()
        except BaseException:
            view.close()
            raise

    def parent(self, store: Store, location: Location) -> Store:
        """Return the parent folder of a file that `find` found in `store`."""
        if isinstance(store, PackedStore):
            return store.parent()
        return self._opener(location.parent)

    def _depth(self, store: Store, found: Entry | None, location: Location) -> int | None:
        """Return the number of components below the packed root; None if there is none."""
        if store.facts.reports_packs:
            if store.packed_at is None:
                return None
            below = store.root_path[len(store.packed_at) :].strip(b"/")
            return len(below.split(b"/")) if below else 0
        if found is not None:
            return 0 if found.kind is Kind.FOLDER and is_packed(store) else None
        return self._depth_by_requests(location)

    def _depth_by_requests(self, location: Location) -> int | None:
        """Find the packed root by requests to the store.

        Packed folders do not exist by themselves, so only the nearest existing folder can be the root.
        """
        depth, here = 0, location
        while here.path and here.parent.path != here.path:
            depth, here = depth + 1, here.parent
            with closing(self._opener(here)) as above:
                if above.stat() is not None:
                    return depth if is_packed(above) else None
        return None


def is_packed(store: Store) -> bool:
    """Return whether there are packs at the root of a store."""
    if store.facts.reports_packs:
        return store.packed_at == store.root_path
    found = store.stat(FOLDER)
    return found is not None and found.kind is Kind.FOLDER


def refuse_packed(store: Store, subject: str) -> None:
    """Raise `RefusedError` if the store is at or in a packed root, where plain files cannot be written."""
    if store.packed_at is not None if store.facts.reports_packs else is_packed(store):
        raise packed_root_error(subject)
