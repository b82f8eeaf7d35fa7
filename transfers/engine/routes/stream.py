"""Move files through this machine: read, write, hash at both ends."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice

from hibali.events import Carried, Carrying, Event, Listener, ignore
from hibali.retry import Pace
from transfers.engine.endpoints import Endpoints
from transfers.engine.routes.base import Fullness, Route, retrying
from transfers.history.journal import Recorder
from transfers.model.entry import Kind, Verification, weakest
from transfers.model.store import Source, Store
from transfers.model.units import (
    PACK_BYTES,
    PACK_ITEMS,
    SEGMENT_BYTES,
    Committed,
    Item,
    Payload,
    Problem,
    Unit,
)
from transfers.pipeline.batches import group_units, packed_together


class StreamRoute(Route):
    """Move items through this machine."""

    name = "stream"
    early = True

    def __init__(self, rate: int = 0, on_event: Listener = ignore) -> None:
        """`rate` is in bytes per second, 0: no limit; the sending thread reports progress to `on_event`."""
        self._on_event = on_event
        self._pace = Pace(rate)
        self._together = packed_together(rate)
        self._full = Fullness()

    @property
    def slowed(self) -> bool:
        """See Route."""
        return self._pace.slows

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        """See Route. Corrupt files are sent again a bounded number of times, then reported."""
        yield from retrying(lambda remaining: self._transfer(source, target, remaining), items)

    def _transfer(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        payloads = PacedPayloads(self._pace, self._on_event)
        batches: Iterable[Iterable[Item]] = [self._full.until(items)]
        if target.facts.names_by_digest:
            batches = hashed_first(source, self._full.until(items))
        with closing(move_batches(source, target, batches, payloads, self._together)) as results:
            for committed in results:
                self._full.note(committed.problem)
                yield committed


def hashed_first(source: Source, items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield items in batches, with the digests of large files: the source hashes those of a batch that it has no digest of."""
    remaining = iter(items)
    while some := list(islice(remaining, PACK_ITEMS)):
        large = [
            item.entry
            for item in some
            if item.carries and item.entry.size > PACK_BYTES and not item.entry.digest
        ]
        found = {entry.path: digest for entry, digest, _ in source.digest(large)} if large else {}
        yield [
            item._replace(entry=item.entry._replace(digest=item.entry.digest or found.get(item.entry.path)))
            for item in some
        ]


def move_batches(
    source: Source, target: Store, batches: Iterable[Iterable[Item]], payloads: PacedPayloads, together: int
) -> Generator[Committed, None, None]:
    """Read one batch after the other, and write all; yield the result of each item, in any order.

    Small files are packed with at most `together` bytes, and never with those of another batch.
    """

    def read() -> Iterator[Payload]:
        for items in batches:
            hashed = target.facts.segment_digests
            units = group_units(
                items, lambda: _piece_bytes(source, target), target.begun, together=together, hashed=hashed
            )
            yield from map(without_rot, source.read(units))

    with closing(target.write(payloads.watch(read()))) as results:
        for committed in results:
            verification = payloads.verifications.pop(committed.item.number, Verification.DIGEST)
            yield _verified_by(committed, verification)


def without_rot(payload: Payload) -> Payload:
    """Remove the files from a payload whose content is not as recorded, although nothing else of them changed."""
    for position, item in enumerate(payload.unit.items):
        digest = payload.digests[position]
        if item.recorded is None or digest is None or digest == item.recorded:
            continue
        start, size = sum(payload.sizes[:position]), payload.sizes[position]
        payload.data = bytes(payload.data[:start]) + bytes(payload.data[start + size :])
        payload.sizes[position], payload.digests[position] = 0, None
        payload.problems[position] = Problem(
            "rot",
            f"not as recorded although size, time and inode are: damaged, or rewritten with its old time; its sha256 is {digest},"
            f" recorded {item.recorded}; to restore it from a good copy, use push --checksum; to take it as it is, add --accept-rot",
        )
    return payload


def open_route(endpoints: Endpoints, recorder: Recorder) -> StreamRoute:
    """Return the route, which always applies."""
    return StreamRoute(endpoints.request.lowest_rate, recorder.on_event)


def _verified_by(committed: Committed, verification: Verification) -> Committed:
    """Return the result with this verification, if it is weaker than the target's."""
    if committed.problem is not None or verification is Verification.DIGEST:
        return committed
    return committed._replace(verification=weakest(committed.verification, verification))


def _piece_bytes(source: Source, target: Store) -> int:
    """Return the segment size for large files: small ones distribute better over several channels."""
    facts = (source.facts, target.facts)
    if source.several_channels or target.several_channels:
        return max(one.least_segment_bytes for one in facts)
    return min(SEGMENT_BYTES, max(one.segment_bytes for one in facts))


class ProgressReport:
    """A reporter of progress by unit, for one thread."""

    def __init__(self, on_event: Listener) -> None:
        self._on_event = on_event
        self._large = (-1, 0)  # number of the last large file, and the bytes of it that existed before

    def report_progress(self, unit: Unit, size: int) -> None:
        """Report bytes of a unit as sent."""
        if unit.segment:
            item = unit.items[0]
            if item.number != self._large[0]:
                self._large = (item.number, unit.offset)
            self._on_event(Carrying(item.entry.path, self._large[1], unit.offset + size, item.entry.size))
        if size:
            self._on_event(Carried(size))


class PacedPayloads(ProgressReport):
    """The source's verifications until the target replies; the sending thread fills it."""

    def __init__(self, pace: Pace, on_event: Listener) -> None:
        """`on_event` is called from the sending thread."""
        super().__init__(on_event)
        self._pace = pace
        self.verifications: dict[int, Verification] = {}

    def watch(self, payloads: Iterable[Payload]) -> Iterator[Payload]:
        """Yield the payloads at the allowed rate, and report progress."""
        for payload in payloads:
            if payload.verifications.count(Verification.DIGEST) < len(payload.verifications):
                for item, verification in zip(payload.unit.items, payload.verifications, strict=True):
                    if item.entry.kind is Kind.FILE and verification is not Verification.DIGEST:
                        self.verifications[item.number] = verification
            size = len(payload.data)
            self._pace.acquire(size)
            yield payload
            self.report_progress(payload.unit, size)
