"""Landing payloads as objects: small ones whole, large ones in parts, several at once within a bounded window."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from hibali.errors import HibaliError
from transfers.entry import Entry, Kind, Proof
from transfers.store import WINDOW_BYTES, Item, Landed, Payload, Problem
from transfers.stores.s3_bulk import Bulk
from transfers.stores.s3_cache import Cache
from transfers.stores.s3_cache import Upload as Begun
from transfers.stores.s3_errors import problem_of
from transfers.stores.s3_manifest import Known, to_metadata
from transfers.stores.s3_multipart import Upload, part_bytes
from transfers.stores.s3_probe import Honours
from transfers.stores.s3_requests import Requests

_AT_ONCE = 32
_CORRUPT = Problem("corrupt", "what arrived here is not what was read (sha256)", again=True)
_OUT_OF_ORDER = Problem("out-of-order", "its segments did not come one after the other")
_CANNOT_HOLD = Problem("cannot-hold", "an object store holds files only")


class Holder(Protocol):
    """Whoever knows whether the target is still ours."""

    def check(self, *, now: bool = False) -> None:
        """Raise `TryLaterError` where it is not; with `now` whoever knows is asked."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how objects land: what a store gives to each `write`."""

    requests: Requests
    bulk: Bulk
    pool: Executor
    cache: Cache
    key_of: Callable[[bytes], bytes]
    make_room: Callable[[Item], None]
    honours: Honours
    holder: Holder


@dataclass(slots=True)
class _Large:
    """A file that is coming in segments; once it has a problem, the rest of it is passed over."""

    item: Item
    part: int
    upload: Upload | None = None
    problem: Problem | None = None
    sha256: Any = field(default_factory=hashlib.sha256)
    held: bytearray = field(default_factory=bytearray)
    taken: int = 0
    count: int = 0
    sent: list[Future[None]] = field(default_factory=list)


class Writing:
    """One `write`: used once. `landed` has what stands now, `bytes` what was sent."""

    def __init__(self, place: Place) -> None:
        self._place = place
        # Needed only where the server does not look at the payload's sha256 in the signature.
        self._checksum = place.honours.checks_checksum and not place.honours.checks_sha256
        self._answers: queue.SimpleQueue[Landed | BaseException | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._bytes_held = 0
        self._jobs = 0
        self._stopped = False
        self._large: dict[int, _Large] = {}
        self.landed: dict[bytes, Known] = {}
        self.bytes = 0

    def run(self, payloads: Iterable[Payload]) -> Generator[Landed, None, None]:
        """See Store.write."""
        feeder = threading.Thread(target=self._feed, args=(payloads,), name="put", daemon=True)
        feeder.start()
        try:
            while (answer := self._answers.get()) is not None:
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            with self._room:
                self._stopped = True
                self._room.notify_all()
            feeder.join()
            self._wait_for_jobs()
            self._abort_rest()

    def _feed(self, payloads: Iterable[Payload]) -> None:
        """Runs in its own thread, so the source is read here too."""
        try:
            self._place.holder.check(now=True)
            for payload in payloads:
                if self._stopped:
                    return
                self._place.holder.check()
                if payload.unit.segment:
                    self._take_segment(payload)
                else:
                    self._take_pack(payload)
            self._wait_for_jobs()
            self._answers.put(None)
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that takes the answers
            self._answers.put(problem)

    def _take_pack(self, payload: Payload) -> None:
        start = 0
        view = memoryview(payload.data)
        for position, item in enumerate(payload.unit.items):
            content = view[start : start + payload.sizes[position]]
            start += payload.sizes[position]
            digest = payload.digests[position]
            problem = payload.problems.get(position) or self._unable(item)
            if problem is not None:
                self._fail(item, problem)
            else:
                self._submit(len(content), self._land, item, content, digest)

    def _unable(self, item: Item) -> Problem | None:
        return _CANNOT_HOLD if item.entry.kind in {Kind.LINK, Kind.SPECIAL} else None

    def _fail(self, item: Item, problem: Problem) -> None:
        self._answers.put(Landed(item, None, Proof.NONE, problem=problem))

    def _submit(self, size: int, job: Callable[..., None], *words: Any) -> Future[None] | None:
        """Start a job once there is room for it in the window; None when all is to stop."""
        with self._room:
            while not self._stopped and (
                self._jobs >= _AT_ONCE or (self._bytes_held and self._bytes_held + size > WINDOW_BYTES)
            ):
                self._room.wait()
            if self._stopped:
                return None
            self._jobs += 1
            self._bytes_held += size
        return self._place.pool.submit(self._guarded, size, job, *words)

    def _guarded(self, size: int, job: Callable[..., None], *words: Any) -> None:
        try:
            if not self._stopped:
                job(*words)
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that takes the answers
            self._answers.put(problem)
        finally:
            with self._room:
                self._jobs -= 1
                self._bytes_held -= size
                self._room.notify_all()

    def _wait_for_jobs(self) -> None:
        with self._room:
            while self._jobs:
                self._room.wait()

    def _land(self, item: Item, content: memoryview, digest: str | None) -> None:
        """One whole file (or a folder, which is nothing here): hashed in memory, then put."""
        if item.entry.kind is Kind.FOLDER:
            self._place.make_room(item)
            self._answers.put(Landed(item, None, Proof.DIGEST))
            return
        if hashlib.sha256(content).hexdigest() != digest or len(content) != item.entry.size:
            self._fail(item, _CORRUPT)
            return
        known = known_from(item.entry, digest)
        try:
            etag = self._place.bulk.put(
                self._place.key_of(item.entry.path), content, to_metadata(known), checksum=self._checksum
            )
        except HibaliError as problem:
            self._fail(item, problem_of(problem))
            return
        proof = Proof.DIGEST if self._place.honours.proves else _claimed(etag, content)
        self._count(len(content))
        self._landed(item, known._replace(etag=etag), proof)

    def _landed(self, item: Item, known: Known, proof: Proof) -> None:
        self.landed[item.entry.path] = known
        try:
            self._place.make_room(item)
        except HibaliError as problem:
            self._fail(item, problem_of(problem))
            return
        self._answers.put(Landed(item, known.sha256, proof, known.etag))

    def _take_segment(self, payload: Payload) -> None:
        """Segments of one file come in order, without gaps; parts are made of as many as it takes."""
        unit, item = payload.unit, payload.unit.items[0]
        if unit.offset == 0 and unit.last and not payload.problems:
            self._submit(len(payload.data), self._land, item, memoryview(payload.data), payload.digests[0])
            return
        large = self._large.get(item.number)
        if large is None:
            large = _Large(item, part_bytes(item.entry.size, unit.length))
            self._large[item.number] = large
        large.problem = large.problem or payload.problems.get(0)
        if large.problem is None and unit.offset != large.taken:
            large.problem = _OUT_OF_ORDER
        large.taken = unit.offset + unit.length
        if large.problem is None:
            self._add(large, payload)
        if unit.last:
            self._submit(0, self._complete, large, payload.digests[0])

    def _add(self, large: _Large, payload: Payload) -> None:
        large.sha256.update(payload.data)
        large.held += payload.data
        if len(large.held) >= large.part or payload.unit.last:
            if large.upload is None and not self._begin(large):
                return
            content, large.held = bytes(large.held), bytearray()
            large.count += 1
            sent = self._submit(len(content), self._send, large, large.count, content)
            if sent is not None:
                large.sent.append(sent)

    def _begin(self, large: _Large) -> bool:
        entry = large.item.entry
        metadata = to_metadata(known_from(entry, entry.digest))
        with _kept(large):
            key = self._place.key_of(entry.path)
            large.upload = Upload(
                self._place.requests,
                key,
                metadata,
                checksum=self._checksum,
                proves=self._place.honours.proves,
            )
            self._place.cache.begin(Begun(entry.path, large.upload.identifier))
        return large.problem is None

    def _send(self, large: _Large, number: int, content: bytes) -> None:
        if large.upload is not None and large.problem is None:
            with _kept(large):
                large.upload.send(number, content)
                self._count(len(content))

    def _complete(self, large: _Large, digest: str | None) -> None:
        """Its parts were submitted before, so they are under way or done: waiting for them ends."""
        for sent in large.sent:
            sent.result()
        if large.problem is None and large.sha256.hexdigest() != digest:
            large.problem = _CORRUPT
        etag = ""
        if large.problem is None and large.upload is not None:
            with _kept(large):
                etag = large.upload.complete()
        if large.problem is not None:
            self._abort(large)
            self._fail(large.item, large.problem)
            return
        self._forget(large)
        proof = Proof.DIGEST if self._place.honours.proves else Proof.SIZE
        if large.upload is not None and large.upload.claimed:
            proof = Proof.CLAIMED
        self._landed(large.item, known_from(large.item.entry, digest)._replace(etag=etag), proof)

    def _abort(self, large: _Large) -> None:
        """Parts still under way would keep an aborted upload alive, so they are waited for."""
        for sent in large.sent:
            sent.exception()
        with contextlib.suppress(HibaliError):
            if large.upload is not None:
                large.upload.abort()
            self._forget(large)

    def _forget(self, large: _Large) -> None:
        self._large.pop(large.item.number, None)
        if large.upload is not None:
            self._place.cache.end(Begun(large.item.entry.path, large.upload.identifier))

    def _abort_rest(self) -> None:
        for large in list(self._large.values()):
            self._abort(large)

    def _count(self, size: int) -> None:
        with self._room:
            self.bytes += size


@contextlib.contextmanager
def _kept(large: _Large) -> Iterator[None]:
    """What goes wrong with one file is its problem; what goes wrong with all is raised."""
    try:
        yield
    except HibaliError as error:
        large.problem = problem_of(error)


def known_from(entry: Entry, digest: str | None) -> Known:
    """What is to be kept of a file; its ETag is not known before it has landed."""
    return Known("", entry.size, digest, entry.mtime_ns, entry.mode)


def _claimed(etag: str, content: memoryview) -> Proof:
    """The server's word for what it holds, where that is an MD5."""
    return Proof.CLAIMED if hashlib.md5(content, usedforsecurity=False).hexdigest() == etag else Proof.SIZE
