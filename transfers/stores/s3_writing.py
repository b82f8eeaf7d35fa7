"""Landing payloads as objects: small ones whole, large ones in parts, several at once within a bounded window."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator, Iterable

from hibali.errors import HibaliError
from transfers.entry import Kind, Proof
from transfers.jobs import Jobs
from transfers.store import Item, Landed, Payload, Problem
from transfers.stores.s3_errors import problem_of
from transfers.stores.s3_large import CORRUPT, OUT_OF_ORDER, Large, Place, known_from
from transfers.stores.s3_lines import Lines
from transfers.stores.s3_manifest import Known, line_of, to_metadata
from transfers.stores.s3_requests import IN_FLIGHT_BYTES, Bytes

_AT_ONCE = 32
_WHOLE_BYTES = 32 * 1024 * 1024  # up to here one request beats several, and those around an upload
_CANNOT_HOLD = Problem("cannot-hold", "an object store holds files only")


class _Whole:
    """A file of a few segments, gathered to be put in one piece; once it has a `problem`, the rest is passed over."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.problem: Problem | None = None

    def take(self, payload: Payload) -> None:
        self.problem = self.problem or payload.problems.get(0)
        if self.problem is None and payload.unit.offset != len(self.content):
            self.problem = OUT_OF_ORDER
        if self.problem is None:
            self.content += payload.data


class Writing:
    """One `write`: used once. `landed` has what stands now, `bytes` what was sent; `continued` whether parts of an earlier call count."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._jobs: Jobs[Landed] = Jobs(place.pool, at_once=_AT_ONCE, most_bytes=IN_FLIGHT_BYTES)
        self._counting = threading.Lock()
        self._large: dict[int, Large] = {}
        self._whole: dict[int, _Whole] = {}
        self.landed = Lines()
        self.bytes = 0
        self.continued = False

    def run(self, payloads: Iterable[Payload]) -> Generator[Landed, None, None]:
        """See Store.write."""
        try:
            yield from self._jobs.run(lambda: self._feed(payloads))
        finally:
            self._let_go()

    def _feed(self, payloads: Iterable[Payload]) -> None:
        """Runs in its own thread, so the source is read here too."""
        self._place.holder.check(now=True)
        for payload in payloads:
            if self._jobs.stopped:
                return
            self._place.holder.check()
            if payload.unit.segment:
                self._take_segment(payload)
            else:
                self._take_pack(payload)

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
            elif item.entry.kind is Kind.FOLDER:
                self._clear(item)  # at once: what follows may lie in it
            else:
                self._jobs.submit(len(content), self._land, item, content, digest)

    def _unable(self, item: Item) -> Problem | None:
        return _CANNOT_HOLD if item.entry.kind in {Kind.LINK, Kind.SPECIAL} else None

    def _fail(self, item: Item, problem: Problem) -> None:
        self._jobs.tell(Landed(item, None, Proof.NONE, problem=problem))

    def _land(self, item: Item, content: memoryview, digest: str | None) -> None:
        """One whole file: hashed in memory, then put."""
        found = hashlib.sha256(content).hexdigest()
        if found != digest or len(content) != item.entry.size:
            self._fail(item, CORRUPT)
            return
        known = known_from(item.entry, digest)
        try:
            self._clear_first(item)
            etag = self._place.bulk.put(
                self._place.key_of(item.entry.path),
                content,
                to_metadata(known),
                sha256=found,
                checksum=self._place.checksum,
            )
        except HibaliError as problem:
            self._fail(item, problem_of(problem))
            return
        proof = Proof.DIGEST if self._place.honours.proves else _claimed(etag, content)
        self._count(len(content))
        self._landed(item, known._replace(etag=etag), proof)

    def _clear(self, item: Item) -> None:
        """A folder, which is nothing here: only what is in its way goes."""
        try:
            self._place.make_room(item)
        except HibaliError as problem:
            self._fail(item, problem_of(problem))
            return
        self._jobs.tell(Landed(item, None, Proof.DIGEST))

    def _clear_first(self, item: Item) -> None:
        """Where both cannot stand side by side, what was agreed to go cannot wait until the new one has landed."""
        if not self._place.honours.file_and_folder:
            self._place.make_room(item)

    def _landed(self, item: Item, known: Known, proof: Proof) -> None:
        self.landed.add(item.entry.path, line_of(item.entry.path, known))
        try:
            self._place.make_room(item)
        except HibaliError as problem:
            self._fail(item, problem_of(problem))
            return
        self._jobs.tell(Landed(item, known.sha256, proof, known.etag))

    def _take_segment(self, payload: Payload) -> None:
        """Segments of one file come in order, without gaps; parts are made of as many as it takes."""
        unit, item = payload.unit, payload.unit.items[0]
        if unit.offset == 0 and unit.last and not payload.problems:
            self._jobs.submit(
                len(payload.data), self._land, item, memoryview(payload.data), payload.digests[0]
            )
            return
        if item.entry.size <= _WHOLE_BYTES:
            self._gather(payload)
            return
        large = self._large.get(item.number)
        if large is None:
            large = self._large[item.number] = Large(self._place, item, unit.length)
        part = large.take(payload)
        if part is not None:
            sent = self._jobs.submit(len(part[1]), self._send, large, *part)
            if sent is not None:
                large.sent.append(sent)
        if unit.last:
            self._jobs.submit(0, self._complete, large, payload.digests[0])

    def _gather(self, payload: Payload) -> None:
        item = payload.unit.items[0]
        whole = self._whole.setdefault(item.number, _Whole())
        whole.take(payload)
        if not payload.unit.last:
            return
        del self._whole[item.number]
        if whole.problem is not None:
            self._fail(item, whole.problem)
            return
        content = memoryview(whole.content)
        self._jobs.submit(len(content), self._land, item, content, payload.digests[0])

    def _send(self, large: Large, number: int, content: Bytes) -> None:
        self._count(large.send(number, content))

    def _complete(self, large: Large, digest: str | None) -> None:
        """Its parts were submitted before, so they are under way or done: waiting for them ends."""
        done = large.complete(digest)
        self._large.pop(large.item.number, None)
        if done is None:
            self._fail(large.item, large.problem or CORRUPT)
            return
        self.continued = self.continued or large.continued
        self._landed(large.item, *done)

    def _let_go(self) -> None:
        for large in self._large.values():
            large.let_go()
        self._large.clear()

    def _count(self, size: int) -> None:
        with self._counting:
            self.bytes += size


def _claimed(etag: str, content: memoryview) -> Proof:
    """The server's word for what it holds, where that is an MD5."""
    return Proof.CLAIMED if hashlib.md5(content, usedforsecurity=False).hexdigest() == etag else Proof.SIZE
