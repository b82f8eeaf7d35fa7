"""Copies that one server makes from a bucket of its own into another, or into the same one, without the bytes passing us."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial

from hibali.errors import HibaliError, IncompleteError
from transfers.copying import NOT_COPIED
from transfers.entry import Entry, Proof
from transfers.store import Item, Landed, Problem
from transfers.stores.s3_errors import problem_of
from transfers.stores.s3_expected import Expected, is_exact
from transfers.stores.s3_keeping import MOST_BYTES, copy_source
from transfers.stores.s3_large import Place, find_begun, known_from
from transfers.stores.s3_lines import Lines
from transfers.stores.s3_manifest import Known, line_of, to_metadata
from transfers.stores.s3_multipart import MOST_PARTS, Upload, abort, begin, copied
from transfers.stores.s3_requests import CONNECTIONS, Requests, checksum_of
from transfers.stores.s3_uploads import Begun

PATIENCE_SECONDS = 900  # a server may copy gigabytes before it answers
_PART_BYTES = 512 * 1024 * 1024  # where the source's own parts are not known
_GONE_ON = frozenset({"source-changed", "no-space", "cannot-make-room", "unsafe-name"})
_ENDS_ALL = frozenset({"unreachable", "bad-certificate"})
_CONTENT_HEADERS = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
)
_NO_ETAG = Problem(NOT_COPIED, "the source has no ETag, so nothing tells whether it changed")
_CORRUPT = Problem(NOT_COPIED, "the copy's checksum is not the one on record for the source")


@dataclass(frozen=True, slots=True)
class From:
    """The source: requests about its bucket with its own credentials, and the whole key of an item there."""

    requests: Requests
    key_of: Callable[[Item], bytes]


@dataclass(slots=True)
class Copying:
    """One `copy`: used once; `landed` has what stands now. Requests to the `place` have to wait for long answers."""

    place: Place
    source: From
    expected: Expected
    landed: Lines = field(default_factory=Lines)

    def run(self, items: Iterable[Item]) -> Generator[Landed, None, None]:
        """See Copier.copy. What is larger than one request may copy is copied in parts, one object after the other."""
        under_way: deque[Future[Landed]] = deque()
        holder, pool = self.place.holder, self.place.pool
        try:
            holder.check(now=True)
            for item in items:
                holder.check()
                if item.entry.size > MOST_BYTES:
                    yield self._guarded(item, self._in_parts)
                else:
                    under_way.append(pool.submit(self._guarded, item, self._whole))
                if len(under_way) >= CONNECTIONS:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for one in under_way:
                one.cancel()
            wait(under_way)

    def _guarded(self, item: Item, copy: Callable[[Item, bytes], tuple[Known, Proof] | Problem]) -> Landed:
        """Whatever the server would not do is one item's problem; what ends all is raised."""
        try:
            done = self._checked(item, copy)
        except HibaliError as error:
            if error.code in _ENDS_ALL:
                raise
            done = problem_of(error) if error.code in _GONE_ON else Problem(NOT_COPIED, error.message)
        if isinstance(done, Problem):
            return Landed(item, None, Proof.NONE, problem=done)
        known, proof = done
        return Landed(item, known.sha256, proof, known.etag)

    def _checked(
        self, item: Item, copy: Callable[[Item, bytes], tuple[Known, Proof] | Problem]
    ) -> tuple[Known, Proof] | Problem:
        if not item.entry.etag:
            return _NO_ETAG
        key = self.place.key_of(item.entry.path)
        problem = self.expected.look(item) if is_exact(item) else None
        if problem is not None:
            return problem
        if not self.place.honours.file_and_folder:
            self.place.make_room(item)
        done = copy(item, key)
        if not isinstance(done, Problem):
            self.landed.add(item.entry.path, line_of(item.entry.path, done[0]))
            self.place.make_room(item)
        return done

    def _whole(self, item: Item, key: bytes) -> tuple[Known, Proof] | Problem:
        """CopyObject; metadata goes along. A server that can is asked for the copy's own sha256."""
        headers = {**self._from(item), "x-amz-checksum-algorithm": "SHA256"}
        requests = self.place.requests
        told = copied(requests.ask("PUT", key, headers=headers), requests.about)
        return self._judged(item.entry, key, told["ETag"].strip('"'), told.get("ChecksumSHA256", ""))

    def _judged(
        self, entry: Entry, key: bytes, etag: str, checksum: str = ""
    ) -> tuple[Known, Proof] | Problem:
        """What the server's word for the copy is worth. An ETag other than the source's may not be the object's (rclone)."""
        if etag != entry.etag:
            head = self.place.requests.ask("HEAD", key)
            if head.headers.get("content-length") != str(entry.size):
                return Problem(NOT_COPIED, "the copy is not as large as the source")
            etag = head.etag
        summed = checksum if "-" not in checksum else ""  # that of the parts' sums tells nothing of the whole
        if entry.digest and summed and summed != checksum_of(entry.digest):
            return _CORRUPT
        same = etag == entry.etag or bool(summed and entry.digest)
        named = Proof.RECORDED if entry.digest else Proof.CLAIMED
        known = known_from(entry, entry.digest)._replace(etag=etag)
        return known, named if same else Proof.CLAIMED if entry.digest else Proof.SIZE

    def _from(self, item: Item) -> dict[str, str]:
        return copy_source(self.source.requests.bucket, self.source.key_of(item), item.entry.etag)

    def _in_parts(self, item: Item, key: bytes) -> tuple[Known, Proof] | Problem:
        """UploadPartCopy in the source's own parts, so that the ETag comes out the same; gone on with by a later call."""
        entry, place = item.entry, self.place
        size = self._part_bytes(item)
        source = {"copy": self._from(item), "size": entry.size, "etag": entry.etag, "part": size}
        begun, standing = find_begun(place, key, source) or (self._begin(item, key, source), {})
        upload = Upload(place.requests, key, begun.identifier, checksum=False, proves=True, standing=standing)
        copy = partial(self._part, item, upload, begun, size)
        parts = [place.pool.submit(copy, number) for number in range(1, -(-entry.size // size) + 1)]
        try:
            for part in parts:
                part.result()
            etag = upload.complete()
        except BaseException as error:
            for part in parts:
                part.cancel()
            wait(parts)
            self._let_go(begun, error)
            raise
        place.uploads.end(begun)
        return self._judged(entry, key, etag)

    def _begin(self, item: Item, key: bytes, source: dict[str, object]) -> Begun:
        head = self.source.requests.ask("HEAD", self.source.key_of(item))
        if head.etag != item.entry.etag:
            raise IncompleteError(
                "source-changed", "it changed after it was listed", about=self.source.requests.about
            )
        before = "x-amz-meta-"
        metadata = {
            name[len(before) :]: told for name, told in head.headers.items() if name.startswith(before)
        }
        metadata |= to_metadata(known_from(item.entry, item.entry.digest))
        more = {name: head.headers[name] for name in _CONTENT_HEADERS if name in head.headers}
        place = self.place
        begun = Begun(place.requests.bucket, key, begin(place.requests, key, metadata, more), source)
        place.uploads.begin(begun)
        return begun

    def _part_bytes(self, item: Item) -> int:
        """How large the source's parts are, where it was made of parts and the server tells; else a size of ours."""
        size, etag = item.entry.size, item.entry.etag or ""
        count = etag.rpartition("-")[2] if "-" in etag else ""
        head = self.source.requests.ask(
            "HEAD", self.source.key_of(item), query={"partNumber": "1"}, accept=(400, 404, 416, 501)
        )
        first = head.headers.get("content-length", "") if head.status < 300 else ""
        if first.isdigit() and int(first) and count == str(-(-size // int(first))):
            return int(first)
        return max(_PART_BYTES, -(-size // MOST_PARTS))

    def _part(self, item: Item, upload: Upload, begun: Begun, size: int, number: int) -> None:
        first = (number - 1) * size
        length = min(size, item.entry.size - first)
        self.place.holder.check()
        wanted = {**self._from(item), "x-amz-copy-source-range": f"bytes={first}-{first + length - 1}"}
        part = upload.copy(number, length, wanted)
        if part is not None:
            self.place.uploads.add(begun, number, part)

    def _let_go(self, begun: Begun, error: BaseException) -> None:
        """Kept for whoever goes on with it where the call was stopped; else ended, as the bytes go another way."""
        if not isinstance(error, HibaliError) or error.code in _ENDS_ALL:
            self.place.uploads.leave(begun)
            return
        try:
            abort(self.place.requests, begun.key, begun.identifier)
        except HibaliError:
            self.place.uploads.leave(begun)
        else:
            self.place.uploads.end(begun)


def patient(place: Place) -> Place:
    """The same place with requests that wait for long answers; close them."""
    return replace(place, requests=place.requests.patient(PATIENCE_SECONDS))
