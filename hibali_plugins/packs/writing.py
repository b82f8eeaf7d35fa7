"""Write packs to a target: tar files and their indexes."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from hibali.errors import RefusedError, UsageError
from hibali.events import Event, Listener, Packed, ignore
from hibali_plugins.packs.format import (
    Layout,
    Member,
    Pack,
    end_of,
    filler,
    gather,
    header_of,
    index_path,
    lay_out,
    name_in,
    ordered,
    pack_name,
    padding,
    write_index,
)
from hibali_plugins.packs.view import PackedRoot, PackedStore
from transfers.engine.endpoints import Endpoints
from transfers.engine.request import Request
from transfers.engine.routes.base import RouteOption
from transfers.engine.routes.stream import PacedPayloads, StreamRoute
from transfers.history.journal import Recorder
from transfers.model.entry import Entry, Kind, Verification, weakest
from transfers.model.facts import name_problem
from transfers.model.store import Lock, RootIdentity, Source, Store
from transfers.model.units import SEGMENT_BYTES, Committed, Item, Payload, Problem, Space, Unit
from transfers.pipeline.batches import group_units
from transfers.stores.open_views import is_packed, packed_root_error

_SHORT = Problem("source-changed", "its size changed since it was listed")
_CORRUPT = Problem("corrupt", "its digest changed during the transfer", retryable=True)
_NOTHING = Problem("nothing-to-pack", "none of its files could be read")


class _BrokenError(Exception):
    """The tar file cannot be completed."""


@dataclass(frozen=True, slots=True)
class PackedItem:
    """An item whose content is in the tar file, with its entry for the index and the verification at the source."""

    item: Item
    entry: Entry
    verification: Verification


class PackWriter:
    """A pack being written; another thread reads `payloads`, and the results are complete when that ends."""

    def __init__(self, layout: Layout, source: Source) -> None:
        self._layout = layout
        self._source = source
        self.packed: list[PackedItem] = []
        self.failed: list[tuple[Item, Problem]] = []
        self.digest = ""
        self._large = bytearray()
        self._problem: Problem | None = None
        self._sum: Any = hashlib.sha256()

    def payloads(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """Yield the tar file in the requested units; the part that the target already has is only hashed."""
        chunks = self._chunks()
        summed = hashlib.sha256()
        held = bytearray()
        at = 0  # the offset of `held` in the tar file
        for unit in units:
            start, length = (unit.offset, unit.length) if unit.segment else (0, self._layout.tar.size)
            try:
                while at + len(held) < start + length:
                    chunk = next(chunks)
                    summed.update(chunk)
                    held += chunk
                    if at + len(held) <= start:
                        at += len(held)
                        held.clear()
                if unit.last:
                    self._end(chunks)
            except _BrokenError:
                yield Payload(unit, b"", [0], [None], [Verification.NONE], {0: _NOTHING})
                return
            content = bytes(memoryview(held)[start - at : start - at + length])
            del held[: start - at + length]
            at = start + length
            self.digest = summed.hexdigest() if unit.last else ""
            yield Payload(unit, content, [length], [self.digest or None], [Verification.DIGEST])

    def _end(self, chunks: Iterator[bytes]) -> None:
        """Check that the tar file is complete and has at least one member."""
        if next(chunks, None) is not None or not self.packed:
            raise _BrokenError

    def _chunks(self) -> Iterator[bytes]:
        size = 0
        broken = False
        for payload in self._source.read(iter(self._layout.units)):
            # after a large file failed, consume the payloads that the source still sends
            for chunk in () if broken else self._blocks(payload):
                size += len(chunk)
                yield chunk
            broken = broken or (self._layout.alone and bool(self.failed))
        if broken:
            raise _BrokenError
        yield end_of(size)

    def _blocks(self, payload: Payload) -> Iterator[bytes]:
        if payload.unit.segment:
            yield from self._alone(payload) if self._layout.alone else self._in_segments(payload)
            return
        start = 0
        for position, (item, size) in enumerate(zip(payload.unit.items, payload.sizes, strict=True)):
            content = memoryview(payload.data)[start : start + size]
            start += size
            verification = payload.verifications[position] if payload.verifications else Verification.DIGEST
            digest = hashlib.sha256(content).hexdigest() if item.entry.kind is Kind.FILE else None
            problem = payload.problems.get(position)
            if problem is None and size != item.entry.size:
                problem = _SHORT
            if problem is None and digest != payload.digests[position]:
                problem = _CORRUPT
            yield self._member(item, content, digest, verification, problem)

    def _member(
        self,
        item: Item,
        content: Any,
        digest: str | None,
        verification: Verification,
        problem: Problem | None,
    ) -> bytes:
        """Return one member, or filler of the same length if there is a problem."""
        header, entry = header_of(item.entry), item.entry
        if problem is not None:
            self.failed.append((item, problem))
            return filler(len(header) + entry.size + len(padding(entry.size)))
        self._pack(item, digest, verification)
        return b"".join((header, content, padding(entry.size)))

    def _pack(self, item: Item, digest: str | None, verification: Verification) -> None:
        source, offset = item.entry, self._layout.offsets[item.number]
        entry = Entry(source.path, source.kind, source.size, source.mtime_ns, source.mode, link=source.link)
        if entry.kind is Kind.FILE:
            entry = entry._replace(etag=f"{self._layout.name}:{offset}", digest=digest)
        self.packed.append(PackedItem(item, entry, verification))

    def _in_segments(self, payload: Payload) -> Iterator[bytes]:
        """Collect a file of several segments in memory, and yield it when its digest is checked."""
        unit, item = payload.unit, payload.unit.items[0]
        self._problem = self._problem or payload.problems.get(0)
        self._large += payload.data
        if not unit.last:
            return
        content, problem = self._large, self._problem
        self._large, self._problem = bytearray(), None
        digest = hashlib.sha256(content).hexdigest()
        if problem is None and len(content) != item.entry.size:
            problem = _SHORT
        if problem is None and digest != payload.digests[0]:
            problem = _CORRUPT
        verification = payload.verifications[0] if payload.verifications else Verification.DIGEST
        yield self._member(item, content, digest, verification, problem)

    def _alone(self, payload: Payload) -> Iterator[bytes]:
        """Stream a file that is too large for memory; if it fails, its tar file fails, too."""
        unit, item = payload.unit, payload.unit.items[0]
        problem = payload.problems.get(0)
        if problem is None and len(payload.data) != unit.length:
            problem = _SHORT
        if problem is None:
            self._sum.update(payload.data)
            if unit.last and self._sum.hexdigest() != payload.digests[0]:
                problem = _CORRUPT
        if problem is not None:
            self.failed.append((item, problem))
            return
        if unit.offset == 0:
            yield header_of(item.entry)
        if unit.last:
            self._pack(
                item,
                payload.digests[0],
                payload.verifications[0] if payload.verifications else Verification.DIGEST,
            )
        yield bytes(payload.data)
        if unit.last:
            yield padding(item.entry.size)

    def unpacked(self) -> Iterator[Item]:
        """Yield items without a result, because the tar file failed before they were read."""
        known = {packed.item.number for packed in self.packed} | {item.number for item, _ in self.failed}
        return (item for item in ordered(self._layout.units) if item.number not in known)


def write_file(store: Store, payloads: Iterable[Payload]) -> Committed | None:
    """Write the one file in these payloads and return its result; None without an answer."""
    found = None
    with closing(store.write(payloads)) as results:
        for committed in results:
            found = committed
    return found


def payloads_of(content: bytes, units: Iterable[Unit]) -> Iterator[Payload]:
    """Yield the payloads of a file whose content is in memory."""
    digest = hashlib.sha256(content).hexdigest()
    for unit in units:
        part = content[unit.offset : unit.offset + unit.length] if unit.segment else content
        yield Payload(unit, part, [len(part)], [digest if unit.last else None], [Verification.DIGEST])


_DELETIONS = 20_000  # number of names in one index of deletions
_NO_RESULT = Problem("not-answered", "the store did not report the result")


class PackedTarget(PackedStore):
    """A root that is packed, or will be; only `PackRoute` writes to it."""

    def __init__(self, place: PackedRoot, subject: str) -> None:
        super().__init__(place, subject)
        self._generation = 0
        self.made: set[str] = set()

    def root_identity(self) -> RootIdentity | None:
        """See Store."""
        return self.store.root_identity()

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        return super().stat(path) if path else self.store.stat()

    def make_root(self) -> None:
        """See Store."""
        self.store.make_root()

    def lock(self, operation: str, *, make: bool = False) -> Lock:
        """See Store."""
        return self.store.lock(operation, make=make)

    def space(self) -> Space:
        """See Store: without a limit of inodes, because a packed file needs none."""
        return Space(self.store.space().free_bytes, None)

    def next_generation(self) -> int:
        """Return a number greater than that of every existing pack."""
        self._generation = max(self._generation + 1, self.place.next_generation)
        return self._generation

    def write_pack_index(self, pack: Pack, members: Iterable[Member], mtime_ns: int = 0) -> Committed:
        """Write the index of a pack: this makes the pack valid."""
        content = write_index(pack, members)
        entry = Entry(index_path(pack.name), Kind.FILE, len(content), mtime_ns, 0o644)
        item = Item(pack.generation, entry)
        piece = min(SEGMENT_BYTES, self.store.facts.segment_bytes)
        units = group_units([item], lambda: piece)
        committed = write_file(self.store, payloads_of(content, units))
        if committed is not None and committed.problem is None:
            self.made.add(pack.name)
        return committed or Committed(item, None, self.facts.write_verification, problem=_NO_RESULT)

    def below(self, folders: set[bytes]) -> Iterator[Entry]:
        """Yield the packed entries below these folders, and the folders themselves."""
        for entry in self.place.members() if folders else ():
            parts = entry.path.split(b"/")
            if any(b"/".join(parts[:count]) in folders for count in range(1, len(parts))) or (
                entry.kind is Kind.FOLDER and entry.path in folders
            ):
                yield entry

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store: a new index records the deletions; the tar files do not change."""
        coming = iter(entries)
        while some := list(islice(coming, _DELETIONS)):
            generation = self.next_generation()
            pack = Pack(pack_name(generation, f"{0:016x}"))
            problem = self.write_pack_index(
                pack, (Member(entry, generation, deleted=True) for entry in some)
            ).problem
            for entry in some:
                yield entry, problem

    def clean(self) -> None:
        """Remove tar files that an interrupted command left without an index."""
        own = {name_in(entry.path, index=False): entry for entry in self.place.leftovers()}
        left = [entry for name, entry in own.items() if name not in self.made]
        for _ in self.store.remove(left):  # the next command tries again what could not be removed
            pass


_NO_PACK_RESULT = Problem("not-answered", "the store did not report the result for its pack")


class PackRoute(StreamRoute):
    """Write to a packed root, with the retries of StreamRoute: files that arrive corrupt are packed again."""

    def __init__(self, pack_bytes: int, rate: int = 0, on_event: Listener = ignore) -> None:
        """Limit packs to `pack_bytes`, except a pack of one larger file; the others as in StreamRoute."""
        super().__init__(rate, on_event)
        self._pack_bytes = pack_bytes

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        """See Route."""
        assert isinstance(target, PackedTarget)
        yield from super().carry(source, target, items)
        target.clean()

    def _transfer(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        assert isinstance(target, PackedTarget)
        for some in gather(self._full.until(items), self._pack_bytes):
            yield from self._make(source, target, some)

    def _make(
        self, source: Source, target: PackedTarget, items: list[Item]
    ) -> Generator[Event | Committed, None, None]:
        """Write one pack: its tar file, then its index; only then its files are committed."""
        store = target.place.store
        piece = min(SEGMENT_BYTES, max(source.facts.segment_bytes, store.facts.segment_bytes))
        generation = target.next_generation()
        layout = lay_out(items, generation, piece)
        writing = PackWriter(layout, source)
        existing = next((one for one in target.place.leftovers() if one.path == layout.tar.path), None)
        tar = Item(generation, layout.tar, existing)
        watched = PacedPayloads(self._pace, self._on_event)
        units = group_units([tar], lambda: piece, store.begun)
        committed = write_file(store, watched.watch(writing.payloads(units)))
        for item, problem in writing.failed:
            yield Committed(item, None, Verification.NONE, problem=problem)
        for item in writing.unpacked():
            yield self._failed(item, committed.problem if committed else None)
        if committed is None or committed.problem is not None:
            for packed in writing.packed:
                yield self._failed(packed.item, committed.problem if committed else None)
            return
        yield from self._index(target, layout, writing, committed.verification)

    def _index(
        self, target: PackedTarget, layout: Layout, writing: PackWriter, verification: Verification
    ) -> Generator[Event | Committed, None, None]:
        pack = Pack(layout.name, layout.tar.size, writing.digest)
        members = [Member(packed.entry, pack.generation) for packed in writing.packed]
        members += _cleared(target, [packed.item for packed in writing.packed], pack.generation)
        indexed = target.write_pack_index(pack, members, layout.tar.mtime_ns)
        if indexed.problem is None:
            yield Packed(layout.tar.path, pack.size, len(writing.packed), writing.digest)
        for packed in writing.packed:
            if indexed.problem is not None:
                yield self._failed(packed.item, indexed.problem)
            else:
                yield Committed(
                    packed.item,
                    packed.entry.digest,
                    weakest(packed.verification, verification),
                    packed.entry.etag,
                )

    def _failed(self, item: Item, problem: Problem | None) -> Committed:
        problem = problem or _NO_PACK_RESULT
        self._full.note(problem)
        return Committed(item, None, Verification.NONE, problem=problem)


def _cleared(target: PackedTarget, items: list[Item], generation: int) -> Iterator[Member]:
    """Yield the deletions for existing entries that an item of another kind replaces.

    These are files, or folders and all below them.
    """
    folders = set()
    for item in items:
        existing = item.replaces
        if existing is None or existing.order == item.entry.order:
            continue
        if existing.kind is Kind.FOLDER:
            folders.add(item.entry.path)
        else:
            yield Member(existing, generation, deleted=True)
    for entry in target.below(folders):
        yield Member(entry, generation, deleted=True)


def _open_target(store: Store, subject: str) -> Store:
    """Open the root of a store for packing. Raises `RefusedError` (8) if it has plain files, or cannot store an index."""
    if problem := name_problem(index_path(pack_name(1, "0" * 16)), store.facts):
        raise RefusedError(
            "cannot-keep-packs",
            f"this endpoint cannot store the indexes of packs: {problem}",
            subject=subject,
            hint="Leave out --pack. Nothing was changed.",
        )
    if store.facts.reports_packs and store.packed_at not in {None, store.root_path}:
        raise packed_root_error(subject)  # a parent folder is packed
    existing = store.stat()
    known = existing is not None and existing.kind is Kind.FOLDER and is_packed(store)
    if existing is not None and existing.kind is Kind.FOLDER and not known:
        # a first pack that was interrupted has no index yet
        foreign = [entry for entry in store.list(shallow=True) if name_in(entry.path, index=False) is None]
        if foreign:
            raise RefusedError(
                "not-packed",
                "this location has plain files; packs cannot be added",
                subject=subject,
                hint="Name a new or empty folder, or leave out --pack. Nothing was changed.",
            )
    return PackedTarget(PackedRoot(store, subject, known=known), subject)


_LEAST_PACK_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class PackOption(RouteOption):
    """The option --pack: files are put into packs of at most `size` bytes, except a pack of one larger file."""

    flag: ClassVar[str] = "--pack"
    size: int = 1024**3

    def __post_init__(self) -> None:
        """Raise `UsageError` for less than 1 MiB."""
        if self.size < _LEAST_PACK_BYTES:
            raise UsageError("usage", "--pack-size cannot be less than 1MiB", subject="--pack-size")

    def check(self, request: Request, *, single: bool) -> None:
        """See FeatureOption."""
        if single:
            subject = request.source.text
            raise UsageError("pack-one-file", "--pack cannot be used with a single file", subject=subject)

    def open_target(self, target: Store, subject: str) -> Store:
        """See FeatureOption. Raises `RefusedError` (8) if the root has plain files."""
        return _open_target(target, subject)

    def open_route(self, endpoints: Endpoints, recorder: Recorder) -> PackRoute:
        """See RouteOption."""
        return PackRoute(self.size, endpoints.request.lowest_rate, recorder.on_event)
