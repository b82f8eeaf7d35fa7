"""Write objects: small ones whole, large ones in parts."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from hibali.errors import HibaliError
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.store import problem_of
from transfers.model.units import Committed, Item, Payload, Problem
from transfers.stores.s3.bulk import Bulk
from transfers.stores.s3.manifest import to_metadata
from transfers.stores.s3.multipart import (
    BegunUpload,
    Part,
    Upload,
    Uploads,
    abort,
    begin,
    part_bytes,
    stored_parts,
)
from transfers.stores.s3.probe import WHOLE_BYTES, ServerSupport
from transfers.stores.s3.requests import Pieces, Requests, hex_of
from transfers.stores.server.lease import Lease, NoLease
from transfers.stores.server.manifest import Known, ManifestLines, line_of
from transfers.stores.server.streaming import RequestWriter

_CHANGED = Problem(
    "target-changed", "it changed at the target after the plan was made, so it was not replaced"
)


class ExpectedObjects:
    """A check of the keys of exact items just before they are written."""

    def __init__(self, requests: Requests, pool: Executor, key_of: Callable[[bytes], bytes]) -> None:
        """Set the fields; `key_of` returns the full key of a path below the root."""
        self._requests = requests
        self._pool = pool
        self._key_of = key_of

    def check(self, payloads: Iterable[Payload]) -> Iterator[Payload]:
        """Yield the payloads; an item whose key holds an unplanned object gets a problem."""
        for payload in payloads:
            checked = [
                (position, item)
                for position, item in enumerate(payload.unit.items)
                if is_exact(item) and not payload.unit.offset
            ]
            found = self._pool.map(self.check_item, [item for _, item in checked])
            for (position, _), problem in zip(checked, found, strict=True):
                if problem is not None:
                    payload.problems.setdefault(position, problem)
            yield payload

    def check_item(self, item: Item) -> Problem | None:
        """Return a problem if the item's key holds another object than planned."""
        try:
            head = self._requests.request("HEAD", self._key_of(item.entry.path), accept=(404,))
        except HibaliError as error:
            return problem_of(error, denied=True)
        planned = item.replaces
        if head.status == 404 or (planned is not None and planned.etag == head.etag):
            return None
        return _CHANGED


def is_exact(item: Item) -> bool:
    """Return whether a saved plan states what the key of this file holds."""
    return item.exact and not item.clear and item.entry.kind is Kind.FILE


CORRUPT = Problem("corrupt", "the received data differs from the source (sha256)", retryable=True)
OUT_OF_ORDER = Problem("out-of-order", "its segments arrived out of order")


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The target of one `write`: how the store writes objects."""

    requests: Requests
    bulk: Bulk
    pool: Executor
    uploads: Uploads
    key_of: Callable[[bytes], bytes]
    clear_conflicts: Callable[[Item], None]
    support: ServerSupport
    holder: Lease | NoLease

    @property
    def checksum(self) -> bool:
        """Whether to send a checksum: only if the server does not verify the signed payload's sha256."""
        return self.support.checks_checksum and not self.support.checks_sha256


class Large:
    """A file that arrives in segments; after a `problem`, its remaining segments are skipped.

    A resumed upload still reads and hashes every byte; a stored part is skipped only if its bytes
    are unchanged. `continued` says whether a stored part was reused.
    """

    def __init__(self, write_target: WriteTarget, item: Item, segment: int, *, hashed: bool) -> None:
        """`segment` is the size of the segments; with `hashed`, the source hashed each of them with the whole file."""
        self.item = item
        self.problem: Problem | None = None
        self.continued = False
        self.sent: list[Future[None]] = []
        self._write_target = write_target
        self._part = part_bytes(item.entry.size, segment)
        # A server that verifies the source's digest of each segment proves the whole file: nothing is hashed here.
        is_proven = hashed and self._part == segment and write_target.support.verifies_hashes
        self._sha256: Any = None if is_proven else hashlib.sha256()
        self._held = Pieces()
        self._received = 0
        self._count = 0
        self._begun: BegunUpload | None = None
        self._upload: Upload | None = None

    def add(self, payload: Payload) -> tuple[int, Pieces, str | None] | None:
        """Take the next segment; return number, content and the source's digest of a complete part. One thread calls this."""
        unit = payload.unit
        self.problem = self.problem or payload.problems.get(0)
        if self.problem is None and unit.offset != self._received:
            self.problem = OUT_OF_ORDER
        digest = payload.segment_digest if self._sha256 is None else None
        if self.problem is None and self._sha256 is None and digest is None:
            self.problem = CORRUPT
        self._received = unit.offset + unit.length
        if self.problem is not None:
            return None
        if self._sha256 is not None:
            self._sha256.update(payload.data)
        part = self._held
        part.append(payload.data)
        if (len(part) < self._part and not unit.last) or not self._open():
            return None
        self._held = Pieces()
        self._count += 1
        return self._count, part, digest

    def _open(self) -> bool:
        """Begin or resume the upload; return False if that is a problem of this file."""
        if self._upload is None:
            with self._errors_as_problem():
                key = self._write_target.key_of(self.item.entry.path)
                begun, existing = self._find(key)
                self._begun = begun
                self._upload = Upload(
                    self._write_target.requests,
                    key,
                    begun.identifier,
                    checksum=self._write_target.checksum,
                    verifies_hashes=self._write_target.support.verifies_hashes,
                    existing=existing,
                )
        return self.problem is None

    def _find(self, key: bytes) -> tuple[BegunUpload, dict[int, Part]]:
        """Find a released upload of this source, or begin one; abort released ones of other sources."""
        entry = self.item.entry
        source = {
            "size": entry.size,
            "mtime_ns": entry.mtime_ns,
            "mode": entry.mode,
            "etag": entry.etag,
            "digest": entry.digest,
            "part": self._part,
        }
        resumed = find_begun(self._write_target, key, source)
        if resumed is not None:
            return resumed
        metadata = to_metadata(known_from(entry, entry.digest))
        made = BegunUpload(
            self._write_target.requests.bucket, key, begin(self._write_target.requests, key, metadata), source
        )
        self._write_target.uploads.begin(made)
        return made, {}

    def send(self, number: int, content: Pieces, sha256: str | None) -> int:
        """Send a part; return the bytes sent, 0 if the server has it. Thread-safe."""
        if self._upload is None or self._begun is None or self.problem is not None:
            return 0
        size = 0
        with self._errors_as_problem():
            part = self._upload.send(number, content, sha256)
            if part is None:
                self.continued = True
            else:
                self._write_target.uploads.add(self._begun, number, part)
                size = part.size
        return size

    def complete(self, digest: str | None) -> tuple[Known, Verification] | None:
        """Complete the upload after all parts were submitted; return None if the file has a `problem`."""
        for sent in self.sent:
            sent.result()
        if self.problem is None and self._sha256 is not None and self._sha256.hexdigest() != digest:
            self.problem = CORRUPT
        etag = ""
        if self.problem is None and self._upload is not None:
            with self._errors_as_problem():
                if not self._write_target.support.file_and_folder:
                    self._write_target.clear_conflicts(self.item)
                etag = self._upload.complete()
        if self.problem is not None or self._upload is None or self._begun is None:
            self.release()
            return None
        self._write_target.uploads.end(self._begun)
        return known_from(self.item.entry, digest)._replace(etag=etag), self._verification(self._upload)

    def _verification(self, upload: Upload) -> Verification:
        """Return the verification, RECORDED if the server hashed reused parts in an earlier call."""
        if self._write_target.support.verifies_hashes:
            return Verification.RECORDED if self.continued else Verification.DIGEST
        return Verification.CLAIMED if upload.claimed else Verification.SIZE

    def release(self) -> None:
        """Keep the parts for a resuming call; abort the upload if the file itself is the problem.

        Waits for parts in flight, because they would keep an aborted upload alive.
        """
        for sent in self.sent:
            sent.exception()
        if self._begun is None:
            return
        if self.problem is None or self.problem.retryable:
            self._write_target.uploads.leave(self._begun)
            return
        with contextlib.suppress(HibaliError):
            abort(self._write_target.requests, self._begun.key, self._begun.identifier)
            self._write_target.uploads.end(self._begun)

    @contextlib.contextmanager
    def _errors_as_problem(self) -> Iterator[None]:
        """Convert an error of one file to its problem; raise errors that affect all files."""
        try:
            yield
        except HibaliError as error:
            self.problem = problem_of(error)


def find_begun(
    write_target: WriteTarget, key: bytes, source: dict[str, Any]
) -> tuple[BegunUpload, dict[int, Part]] | None:
    """Return a released upload of this source and its stored parts; abort others."""
    for begun in reversed(write_target.uploads.of_key(key)):
        if not (begun.left or write_target.holder.held):
            continue  # another process may use it, and no lock says which
        if begun.source == source and begun.parts:
            # Parts that both this record and the server list identically.
            listed = stored_parts(write_target.requests, key, begun.identifier) or {}
            existing = {n: part for n, part in begun.parts.items() if listed.get(n) == (part.size, part.etag)}
            if existing:
                write_target.uploads.claim(begun)
                return begun, existing
        abort(write_target.requests, key, begun.identifier)
        write_target.uploads.end(begun)
    return None


def known_from(entry: Entry, digest: str | None) -> Known:
    """Return the record to store for a file; its ETag is unknown before the commit."""
    return Known("", entry.size, digest, entry.mtime_ns, entry.mode)


class _Whole:
    """A file of a few segments, sent in one PUT; after a `problem`, its segments are skipped."""

    def __init__(self) -> None:
        self.content = Pieces()
        self.problem: Problem | None = None

    def add(self, payload: Payload) -> None:
        self.problem = self.problem or payload.problems.get(0)
        if self.problem is None and payload.unit.offset != len(self.content):
            self.problem = OUT_OF_ORDER
        if self.problem is None:
            self.content.append(payload.data)


class S3Writer(RequestWriter):
    """The writer of objects: `committed` are their manifest lines, `continued` says if parts were reused."""

    cannot_store = Problem("unsupported-kind", "an object store cannot store symlinks and special files")

    def __init__(self, write_target: WriteTarget) -> None:
        super().__init__(write_target.holder, write_target.pool, write_target.requests.connections)
        self._write_target = write_target
        self._large: dict[int, Large] = {}
        self._whole: dict[int, _Whole] = {}
        self.committed = ManifestLines()
        self.continued = False

    def run(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store.write."""
        try:
            yield from super().run(payloads)
        finally:
            for large in self._large.values():
                large.release()
            self._large.clear()

    def _write_whole(self, item: Item, content: memoryview | Pieces, digest: str) -> None:
        write_target, known = self._write_target, known_from(item.entry, digest)
        bulk, is_checked = write_target.bulk, write_target.support.verifies_hashes
        try:
            key = write_target.key_of(item.entry.path)
            # A server that compares what it received with the source's digest needs no second hash here, unless
            # something else is removed first.
            compares = is_checked and not item.clear and bulk.sends_digest(key, content)
            found = digest if compares else hex_of(hashlib.sha256(), content)
            if not digest or found != digest or len(content) != item.entry.size:
                self._fail(item, CORRUPT)
                return
            self._clear_first(item)
            etag = bulk.put(key, content, to_metadata(known), sha256=digest, checksum=write_target.checksum)
        except HibaliError as problem:
            self._fail(item, problem_of(problem))
            return
        verification = Verification.DIGEST if is_checked else _claimed(etag, content)
        self._count(len(content))
        self._committed(item, known._replace(etag=etag), verification)

    def _make_folder(self, item: Item) -> None:
        """Remove a conflicting object, which a folder with content replaces; an empty one gets a marker."""
        try:
            self._write_target.clear_conflicts(item)
            if not item.clear:
                key = self._write_target.key_of(item.entry.path) + b"/"
                self._write_target.requests.request("PUT", key)
        except HibaliError as problem:
            self._fail(item, problem_of(problem))
            return
        self._jobs.report(Committed(item, None, Verification.DIGEST))

    def _clear_first(self, item: Item) -> None:
        """Remove a conflicting object before the write if the server cannot store both at once."""
        if not self._write_target.support.file_and_folder:
            self._write_target.clear_conflicts(item)

    def _committed(self, item: Item, known: Known, verification: Verification) -> None:
        self.committed.add(item.entry.path, line_of(item.entry.path, known))
        try:
            self._write_target.clear_conflicts(item)
        except HibaliError as problem:
            self._fail(item, problem_of(problem))
            return
        self._jobs.report(Committed(item, known.sha256, verification, known.etag))

    def _add_segment(self, payload: Payload) -> None:
        """Collect a file's segments (in order, without gaps) into parts."""
        unit, item = payload.unit, payload.unit.items[0]
        if unit.offset == 0 and unit.last and not payload.problems:
            self._jobs.submit(
                len(payload.data), self._write_whole, item, memoryview(payload.data), payload.digests[0] or ""
            )
            return
        if item.entry.size <= WHOLE_BYTES:
            self._gather(payload)
            return
        large = self._large.get(item.number)
        if large is None:
            hashed = payload.segment_digest is not None
            large = self._large[item.number] = Large(self._write_target, item, unit.length, hashed=hashed)
        part = large.add(payload)
        if part is not None:
            sent = self._jobs.submit(len(part[1]), self._send, large, *part)
            if sent is not None:
                large.sent.append(sent)
        if unit.last:
            self._jobs.submit(0, self._complete, large, payload.digests[0])

    def _gather(self, payload: Payload) -> None:
        item = payload.unit.items[0]
        whole = self._whole.setdefault(item.number, _Whole())
        whole.add(payload)
        if not payload.unit.last:
            return
        del self._whole[item.number]
        if whole.problem is not None:
            self._fail(item, whole.problem)
            return
        digest = payload.digests[0] or ""
        self._jobs.submit(len(whole.content), self._write_whole, item, whole.content, digest)

    def _send(self, large: Large, number: int, content: Pieces, sha256: str | None) -> None:
        self._count(large.send(number, content, sha256))

    def _complete(self, large: Large, digest: str | None) -> None:
        """Complete the file; its parts are already submitted, so waiting for them ends."""
        done = large.complete(digest)
        self._large.pop(large.item.number, None)
        if done is None:
            self._fail(large.item, large.problem or CORRUPT)
            return
        self.continued = self.continued or large.continued
        self._committed(large.item, *done)


def _claimed(etag: str, content: memoryview | Pieces) -> Verification:
    """Return the verification from the server's ETag, if that is an MD5."""
    md5 = hex_of(hashlib.md5(usedforsecurity=False), content)
    return Verification.CLAIMED if md5 == etag else Verification.SIZE
