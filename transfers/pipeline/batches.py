"""Group files into batches and chunks, and limit how much is in flight."""

from __future__ import annotations

import math
import re
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from hibali.cancellation import in_this_context
from transfers.agent import protocol
from transfers.model.entry import Kind, Verification
from transfers.model.units import PACK_BYTES, PACK_ITEMS, Item, Payload, Unit, problem_from
from transfers.remote.connection import Connection

if TYPE_CHECKING:  # start-up: only where there is a pool already
    from concurrent.futures import Executor, Future


@dataclass(frozen=True, slots=True)
class _Open:
    size: int
    of: int | None
    offset: int


class Window:
    """Units that were sent and have no reply yet. One thread opens, any thread may close.

    An interrupted file loses the pieces after its first gap: no piece is sent beyond the limit from there.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        """`limit` returns how many bytes may be in flight; called when a unit is added or answered."""
        self._limit = limit
        self.stopped = False
        self._held = 0
        self._open: dict[int, _Open] = {}
        self._changed = threading.Condition()

    def recheck(self) -> None:
        """Wake the waiting thread, because the limit has changed."""
        with self._changed:
            self._changed.notify_all()

    def open(self, number: int, size: int, *, of: int | None = None, offset: int = 0) -> bool:
        """Wait until a unit fits, possibly a piece `of` a file at `offset`; return False once stopped.

        Without bytes it always fits: a thread that reads replies opens such units, and must not wait for one.
        """
        with self._changed:
            while not self.stopped and not self.fits(size, of, offset):
                self._changed.wait()
            if self.stopped:
                return False
            self._held += size
            self._open[number] = _Open(size, of, offset)
            return True

    def fits(self, size: int, of: int | None, offset: int) -> bool:
        """Return whether such a unit fits now."""
        limit = self._limit()
        if size and self._held and self._held + size > limit:
            return False
        first = min((one.offset for one in self._open.values() if one.of == of), default=offset)
        return of is None or offset + size - first <= limit or first == offset

    def close(self, number: int) -> None:
        """Remove an answered unit."""
        with self._changed:
            found = self._open.pop(number, None)
            self._held -= found.size if found is not None else 0
            self._changed.notify_all()

    def wait_closed(self, number: int) -> bool:
        """Wait for one unit's reply; return False once stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopped or number not in self._open)
            return not self.stopped

    def wait_empty(self) -> bool:
        """Wait for all replies; return False once stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopped or not self._open)
            return not self.stopped

    def stop(self) -> None:
        """Wake all waiting threads: nothing more is to be sent."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()


_MEMORY_SECONDS = 1.0  # older replies get less and less weight
_LEAST_SECONDS = 0.05  # replies that arrive within this time are counted as one


class Flow:
    """The bytes in flight on one channel, and the rate at which they were answered."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.held = 0  # bytes
        self.rate = 0.0  # bytes a second; 0 until it is known
        self._clock = clock
        self._since = 0.0
        self._acknowledged = 0

    def add_in_flight(self, size: int) -> None:
        """Add `size` bytes in flight."""
        if not self.held:
            self._since, self._acknowledged = self._clock(), 0
        self.held += size

    def subtract_answered(self, size: int) -> None:
        """Subtract `size` answered bytes."""
        self.held -= size
        self._acknowledged += size
        passed = self._clock() - self._since
        if passed < _LEAST_SECONDS or not self._acknowledged:
            return
        seen = self._acknowledged / passed
        weight = 1.0 - math.exp(-passed / _MEMORY_SECONDS) if self.rate else 1.0
        self.rate += weight * (seen - self.rate)
        self._since, self._acknowledged = self._since + passed, 0


class Flowing(Protocol):
    """A channel with a measured rate."""

    @property
    def flow(self) -> Flow:
        """The bytes in flight and the rate."""


_Channel = TypeVar("_Channel", bound=Flowing)


def first_through(channels: Iterable[_Channel], size: int) -> _Channel:
    """Return the channel that would finish `size` more bytes first; a new one counts as fast as the fastest.

    Connections share a link unevenly, and a file is complete only when the slowest has sent its last piece.
    """
    choices = list(channels)
    fastest = max(channel.flow.rate for channel in choices) or 1.0
    return min(choices, key=lambda channel: (channel.flow.held + size) / (channel.flow.rate or fastest))


_Result = TypeVar("_Result")


_TOGETHER_SECONDS = 0.02  # results are yielded together that are reported within this time


class Jobs(Generic[_Result]):
    """One run: `feed` submits in its own thread, jobs `report`, `run` yields the results. Used once.

    The thread that yields looks for results at intervals: to be woken up for each one costs as much as sending a small file.
    """

    def __init__(self, pool: Executor, *, most_jobs: int, most_bytes: int) -> None:
        """Limit the jobs to `most_jobs`, and the bytes that they hold to `most_bytes` or to one job's."""
        self._pool = pool
        self._most_jobs = most_jobs
        self._most_bytes = most_bytes
        self._results: deque[_Result] = deque()
        self._failure: BaseException | None = None
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._bytes_held = 0
        self._under_way = 0
        self.stopped = False

    def run(self, feed: Callable[[], None]) -> Generator[list[_Result], None, None]:
        """Yield the results, several at a time, until all jobs end. Closing it stops the feeding and waits for running jobs."""
        feeder = threading.Thread(target=in_this_context(self._feed), args=(feed,), name="feed", daemon=True)
        feeder.start()
        over = False
        try:
            while not over:
                over = self._over.wait(_TOGETHER_SECONDS)
                found = [self._results.popleft() for _ in range(len(self._results))]
                if found:
                    yield found
            if self._failure is not None:
                raise self._failure
        finally:
            with self._changed:
                self.stopped = True
                self._changed.notify_all()
            feeder.join()
            self._wait()

    def _feed(self, feed: Callable[[], None]) -> None:
        try:
            feed()
            if not self.stopped:
                self._wait()
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that reads the results
            self._fail(problem)
        self._over.set()

    def _fail(self, problem: BaseException) -> None:
        self._failure = self._failure or problem
        self._over.set()

    def report(self, result: _Result) -> None:
        """Report a result; any thread may call this."""
        self._results.append(result)

    def submit(self, size: int, job: Callable[..., None], *args: Any) -> Future[None] | None:
        """Start a job that holds `size` bytes once it fits the limits; return None when all must stop."""
        with self._changed:
            while not self.stopped and (
                self._under_way >= self._most_jobs
                or (self._bytes_held and self._bytes_held + size > self._most_bytes)
            ):
                self._changed.wait()
            if self.stopped:
                return None
            self._under_way += 1
            self._bytes_held += size
        return self._pool.submit(in_this_context(self._guarded), size, job, *args)

    def _guarded(self, size: int, job: Callable[..., None], *args: Any) -> None:
        try:
            if not self.stopped:
                job(*args)
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that reads the results
            self._fail(problem)
        finally:
            with self._changed:
                self._under_way -= 1
                self._bytes_held -= size
                self._changed.notify_all()

    def _wait(self) -> None:
        with self._changed:
            while self._under_way:
                self._changed.wait()


def group_units(
    items: Iterable[Item],
    piece_bytes: Callable[[], int],
    begun: Callable[[Item], int] | None = None,
    *,
    large: int = PACK_BYTES,
    together: int = PACK_BYTES,
    hashed: int = 0,
) -> Iterator[Unit]:
    """Group items into units, in order: files larger than `large` into segments, everything else into packs.

    Args:
        items: in transfer order.
        piece_bytes: returns the size of the next segment.
        begun: returns how many bytes of a large file the target already has; its segments start there.
        large: size above which a file is sent in segments.
        together: the most bytes of a pack, except one of a single file.
        hashed: size above which each segment needs its own sha256; 0: never.
    """
    pack: list[Item] = []
    size = 0
    for item in items:
        length = item.entry.size if item.carries else 0
        if length > large:
            yield from _segments(item, begun(item) if begun else 0, piece_bytes, hashed=0 < hashed < length)
            continue
        length += len(item.attributes or b"")
        if pack and (size + length > together or len(pack) >= PACK_ITEMS):
            yield Unit(tuple(pack))
            pack, size = [], 0
        pack.append(item)
        size += length
    if pack:
        yield Unit(tuple(pack))


def unit_bytes(unit: Unit) -> int:
    """Return how many bytes of files a unit carries."""
    return unit.length if unit.segment else sum(item.entry.size for item in unit.items if item.carries)


def packed_together(rate: int) -> int:
    """Return the most bytes of a pack at `rate` bytes a second (0: no limit): at most a second's worth."""
    return min(PACK_BYTES, rate) if rate else PACK_BYTES


def _segments(item: Item, offset: int, piece_bytes: Callable[[], int], *, hashed: bool) -> Iterator[Unit]:
    size = item.entry.size
    while offset < size:
        length = min(piece_bytes(), size - offset)
        yield Unit((item,), offset, length, segment=True, hashed=hashed)
        offset += length


def fill_gaps(
    units: Iterable[Unit], is_known: Callable[[Item], bool] = lambda _: False
) -> Iterator[tuple[Unit, bool]]:
    """Yield each unit with True, and before a unit that resumes a file the units that only its digest needs, with False.

    A source that cannot hash files in place has to read again the part that the target already has.

    Args:
        units: in reading order; a `piece` needs no digest.
        is_known: whether the digest of a file is known without reading.
    """
    reached: dict[int, int] = {}
    for unit in units:
        item = unit.items[0] if unit.segment and not unit.piece else None
        if item is not None:
            start = reached.pop(item.number, 0)
            step = max(unit.length, PACK_BYTES)  # the segment after the gap may be small
            for offset in range(start, 0 if is_known(item) else unit.offset, step):
                yield replace(unit, offset=offset, length=min(step, unit.offset - offset)), False
            if not unit.last:
                reached[item.number] = unit.offset + unit.length
        yield unit, True


_DIGEST = re.compile(r"[0-9a-f]{64}")
KIND_LETTERS = {Kind.FILE: "f", Kind.FOLDER: "d", Kind.LINK: "l", Kind.SPECIAL: "s"}

_NAME_LETTER = "h"  # a further name (hard link) of a committed file


def unit_header(unit: Unit, number: int) -> dict[str, Any]:
    """Return what both endpoints need to know of a unit before its bytes: the plan, by numbers and paths."""
    header = {
        "unit": number,
        "segment": unit.segment,
        "offset": unit.offset,
        "length": unit.length,
        "items": [_piece_header(item) if unit.piece else item_header(item) for item in unit.items],
    }
    return {**header, "hashed": True} if unit.hashed else header


def _piece_header(item: Item) -> dict[str, Any]:
    return {**item_header(item), "inode": item.entry.inode}


def item_header(item: Item) -> dict[str, Any]:
    """Return one item of the plan as an agent receives it, without `protocol.ITEM_DEFAULTS`."""
    entry, replaced = item.entry, item.replaces
    header: dict[str, Any] = {
        "number": item.number,
        "path": protocol.text_of(entry.path),
        "kind": _NAME_LETTER if entry.same_as else KIND_LETTERS[entry.kind],
        "size": entry.size,
        "mtime_ns": entry.mtime_ns,
        "mode": entry.mode,
    }
    if entry.same_as:
        header["same_as"] = protocol.text_of(entry.same_as)
    if entry.link:
        header["link"] = protocol.text_of(entry.link)
    if entry.etag:
        header["tag"] = entry.etag
    if item.clear:
        header["clear"] = True
    if item.exact:
        header["expect"] = _expected(item)
    if entry.sparse:
        header["sparse"] = True
    if item.permissions is not None:
        header["permissions"] = item.permissions
    if item.attributes is not None:
        header["attributes"] = attributes_text(item.attributes)
    if replaced is not None and replaced.kind is Kind.FILE and replaced.mode >= 0:
        header["old_mode"] = replaced.mode
    return header


def attributes_text(packed: bytes | None) -> str | None:
    """Encode attributes for a message, with the fewest bytes for any content."""
    return None if packed is None else b64encode(packed).decode("ascii")


def _expected(item: Item) -> list[Any]:
    """Return what must still exist at the target, as the agent compares it; empty for nothing."""
    found = item.replaces
    if found is None:
        return []
    return [KIND_LETTERS[found.kind], found.size, found.mtime_ns, found.ctime_ns, found.inode]


def payload_of(unit: Unit, frame: protocol.Frame, connection: Connection) -> Payload:
    """Return a source agent's DATA as a payload; raises `IncompleteError` if it is inconsistent."""
    with connection.understanding():
        return _payload(unit, frame, connection)


def _payload(unit: Unit, frame: protocol.Frame, connection: Connection) -> Payload:
    payload = payload_from_header(unit, frame.header, connection)
    if sum(payload.sizes) != len(frame.body):
        raise connection.broken("sent data of inconsistent sizes")
    payload.data = frame.body
    return payload


def payload_from_header(
    unit: Unit, header: dict[str, Any], connection: Connection, *, digested: bool = True
) -> Payload:
    """Return the payload without its bytes; a large file's digest may come separately (not `digested`)."""
    sizes, digests, found = (header.get(key) for key in ("sizes", "digests", "problems"))
    count = len(unit.items)
    if not (isinstance(sizes, list) and isinstance(digests, list) and isinstance(found, dict)):
        raise connection.broken("sent data without its sizes")
    if len(sizes) != count or len(digests) != count:
        raise connection.broken("sent data of inconsistent sizes")
    problems = {int(position): problem_from(p) for position, p in found.items()}
    if not all(0 <= position < count for position in problems):
        raise connection.broken("reported a problem of an item that was not requested")
    segment_digest = header.get("segment_digest")
    if not (segment_digest is None or _is_digest(segment_digest)):
        raise connection.broken("sent a segment with a malformed digest")
    needs_digest = digested and unit.last
    for position, item in enumerate(unit.items):
        carries = item.carries and position not in problems
        expected = (unit.length if unit.segment else item.entry.size) if carries else 0
        if sizes[position] != expected:
            raise connection.broken("sent more or less of a file than was requested")
        digest = digests[position]
        if carries and needs_digest and not _is_digest(digest):
            raise connection.broken("sent a file without its digest")
    return Payload(unit, b"", sizes, digests, [Verification.DIGEST] * count, problems, segment_digest)


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def data_header(payload: Payload, number: int) -> dict[str, Any]:
    """Return what is sent to a target with the bytes: numbers and digests, never a path."""
    return {
        "unit": number,
        "sizes": payload.sizes,
        "digests": payload.digests,
        "problems": {
            str(position): [p.code, p.message, p.retryable] for position, p in payload.problems.items()
        },
    }


class NumberSet:
    """A set of the small integers that plans use as item numbers."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._count = 0

    def add(self, number: int) -> None:
        """Add a number; at most once each."""
        place, bit = divmod(number, 8)
        if place >= len(self._bits):
            self._bits.extend(bytes(place + 1 - len(self._bits)))
        self._bits[place] |= 1 << bit
        self._count += 1

    def clear(self) -> None:
        """Remove all numbers, for another plan."""
        self._bits.clear()
        self._count = 0

    def __contains__(self, number: int) -> bool:
        place, bit = divmod(number, 8)
        return place < len(self._bits) and bool(self._bits[place] >> bit & 1)

    def __len__(self) -> int:
        return self._count
