"""Copy objects inside one S3 server, also as a backup."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from urllib.parse import quote_from_bytes

from hibali.errors import HibaliError, IncompleteError
from hibali.http.client import Response
from transfers.model.entry import Entry, Verification
from transfers.model.store import problem_of
from transfers.model.units import NOT_COPIED, Committed, Item, Problem
from transfers.stores.s3.manifest import to_metadata
from transfers.stores.s3.multipart import MOST_PARTS, BegunUpload, Upload, abort, begin, copied
from transfers.stores.s3.requests import Requests, checksum_of
from transfers.stores.s3.writing import ExpectedObjects, WriteTarget, find_begun, is_exact, known_from
from transfers.stores.server.manifest import Known, ManifestLines, line_of

_BATCH = 256
MOST_BYTES = 5 * 1024**3  # of one copy request (Amazon S3 API reference, CopyObject)
_TOO_LARGE = Problem(
    "too-large",
    "the server cannot copy more than 5 GiB in one request, so the existing object was not replaced",
)
_IN_THE_WAY = Problem("in-the-way", "another file with that name already exists among the backups")
_CHANGED = Problem("target-changed", "it changed after it was listed, so it was left unchanged")


def copy_source(bucket: str, key: bytes, etag: str | None) -> dict[str, str]:
    """Return the headers that name the copy's source, conditional on its ETag."""
    headers = {"x-amz-copy-source": f"/{bucket}/{quote_from_bytes(key, safe='/-_.~')}"}
    if etag:
        headers["x-amz-copy-source-if-match"] = f'"{etag}"'
    return headers


class BackupCopier:
    """Backup copies below another prefix of the same bucket."""

    def __init__(
        self, requests: Requests, pool: Executor, key_of: Callable[[bytes], bytes], prefix: bytes
    ) -> None:
        """Set the fields; `key_of` returns a path's full key, copies go below `prefix` (no final slash)."""
        self._requests = requests
        self._pool = pool
        self._key_of = key_of
        self._prefix = prefix

    def back_up(
        self, entries: Iterable[Entry], check: Callable[[], None]
    ) -> Iterator[tuple[Entry, Problem | None]]:
        """Yield one result for each entry; `check` raises if the lock was lost."""
        coming = iter(entries)
        while batch := list(islice(coming, _BATCH)):
            check()
            yield from zip(batch, self._pool.map(self._copy, batch), strict=True)

    def _copy(self, entry: Entry) -> Problem | None:
        if entry.size > MOST_BYTES:
            return _TOO_LARGE
        headers = copy_source(self._requests.bucket, self._key_of(entry.path), entry.etag)
        key = self._prefix + b"/" + entry.path
        try:
            copy = self._requests.request("HEAD", key, accept=(404,))
            if copy.status != 404:
                return None if self._is_copy(copy, entry) else _IN_THE_WAY
            response = self._requests.request("PUT", key, headers=headers, accept=(404, 412))
            if response.status == 404:
                return None
            if response.status == 412:
                return _CHANGED
            copied(response, self._requests.subject)
        except HibaliError as problem:
            return problem_of(problem, denied=True)
        return None

    def _is_copy(self, copy: Response, entry: Entry) -> bool:
        """Return whether an earlier call copied this object; a copy of a multipart one has another ETag."""
        if copy.etag == entry.etag:
            return True
        head = self._requests.request("HEAD", self._key_of(entry.path), accept=(404,))
        names = ("content-length", "x-amz-meta-sha256")
        return all(head.headers.get(name) == copy.headers.get(name) is not None for name in names)


PATIENCE_SECONDS = 900  # a server may copy gigabytes before it responds
_PART_BYTES = 512 * 1024 * 1024  # if the source's part size is unknown
_ITEM_CODES = frozenset({"source-changed", "no-space", "cannot-make-room", "unsafe-name"})
_ENDS_ALL = frozenset({"unreachable", "bad-certificate"})
_CONTENT_HEADERS = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
)
_NO_ETAG = Problem(NOT_COPIED, "the source has no ETag, so a change cannot be detected")
_CORRUPT = Problem(NOT_COPIED, "the copy's checksum differs from the source's recorded checksum")


@dataclass(frozen=True, slots=True)
class From:
    """The source: requests with its own credentials, and the full key of an item."""

    requests: Requests
    key_of: Callable[[Item], bytes]


@dataclass(slots=True)
class Copying:
    """One `copy` call, used once; `committed` has the results. `write_target` must wait for slow responses."""

    write_target: WriteTarget
    source: From
    expected: ExpectedObjects
    committed: ManifestLines = field(default_factory=ManifestLines)

    def run(self, items: Iterable[Item]) -> Generator[Committed, None, None]:
        """See Copier.copy. Copies objects above the limit of one request in parts, one after the other."""
        under_way: deque[Future[Committed]] = deque()
        holder, pool = self.write_target.holder, self.write_target.pool
        try:
            holder.check(now=True)
            for item in items:
                holder.check()
                if item.entry.size > MOST_BYTES:
                    yield self._guarded(item, self._in_parts)
                else:
                    under_way.append(pool.submit(self._guarded, item, self._whole))
                if len(under_way) >= self.write_target.requests.connections:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for one in under_way:
                one.cancel()
            wait(under_way)

    def _guarded(
        self, item: Item, copy: Callable[[Item, bytes], tuple[Known, Verification] | Problem]
    ) -> Committed:
        """Return a rejected copy as the item's problem; raise what ends the whole operation."""
        try:
            done = self._checked(item, copy)
        except HibaliError as error:
            if error.code in _ENDS_ALL:
                raise
            done = problem_of(error) if error.code in _ITEM_CODES else Problem(NOT_COPIED, error.message)
        if isinstance(done, Problem):
            return Committed(item, None, Verification.NONE, problem=done)
        known, verification = done
        return Committed(item, known.sha256, verification, known.etag)

    def _checked(
        self, item: Item, copy: Callable[[Item, bytes], tuple[Known, Verification] | Problem]
    ) -> tuple[Known, Verification] | Problem:
        if not item.entry.etag:
            return _NO_ETAG
        key = self.write_target.key_of(item.entry.path)
        problem = self.expected.check_item(item) if is_exact(item) else None
        if problem is not None:
            return problem
        if not self.write_target.support.file_and_folder:
            self.write_target.clear_conflicts(item)
        done = copy(item, key)
        if not isinstance(done, Problem):
            self.committed.add(item.entry.path, line_of(item.entry.path, done[0]))
            self.write_target.clear_conflicts(item)
        return done

    def _whole(self, item: Item, key: bytes) -> tuple[Known, Verification] | Problem:
        """Copy with CopyObject, including metadata; request the copy's sha256 if the server supports it."""
        headers = {**self._from(item), "x-amz-checksum-algorithm": "SHA256"}
        requests = self.write_target.requests
        result = copied(requests.request("PUT", key, headers=headers), requests.subject)
        return self._judged(item.entry, key, result["ETag"].strip('"'), result.get("ChecksumSHA256", ""))

    def _judged(
        self, entry: Entry, key: bytes, etag: str, checksum: str = ""
    ) -> tuple[Known, Verification] | Problem:
        """Return the verification that the response allows. An ETag other than the source's may be wrong (rclone)."""
        if etag != entry.etag:
            head = self.write_target.requests.request("HEAD", key)
            if head.headers.get("content-length") != str(entry.size):
                return Problem(NOT_COPIED, "the copy and the source have different sizes")
            etag = head.etag
        summed = checksum if "-" not in checksum else ""  # a checksum of checksums is not the whole's
        if entry.digest and summed and summed != checksum_of(entry.digest):
            return _CORRUPT
        same = etag == entry.etag or bool(summed and entry.digest)
        named = Verification.RECORDED if entry.digest else Verification.CLAIMED
        known = known_from(entry, entry.digest)._replace(etag=etag)
        return known, named if same else Verification.CLAIMED if entry.digest else Verification.SIZE

    def _from(self, item: Item) -> dict[str, str]:
        return copy_source(self.source.requests.bucket, self.source.key_of(item), item.entry.etag)

    def _in_parts(self, item: Item, key: bytes) -> tuple[Known, Verification] | Problem:
        """Copy with UploadPartCopy in the source's part sizes, which keeps the ETag; resumable."""
        entry, write_target = item.entry, self.write_target
        size = self._part_bytes(item)
        source = {"copy": self._from(item), "size": entry.size, "etag": entry.etag, "part": size}
        begun, existing = find_begun(write_target, key, source) or (self._begin(item, key, source), {})
        upload = Upload(
            write_target.requests,
            key,
            begun.identifier,
            checksum=False,
            verifies_hashes=True,
            existing=existing,
        )
        copy = partial(self._part, item, upload, begun, size)
        parts = [write_target.pool.submit(copy, number) for number in range(1, -(-entry.size // size) + 1)]
        try:
            for part in parts:
                part.result()
            etag = upload.complete()
        except BaseException as error:
            for part in parts:
                part.cancel()
            wait(parts)
            self._release_upload(begun, error)
            raise
        write_target.uploads.end(begun)
        return self._judged(entry, key, etag)

    def _begin(self, item: Item, key: bytes, source: dict[str, object]) -> BegunUpload:
        head = self.source.requests.request("HEAD", self.source.key_of(item))
        if head.etag != item.entry.etag:
            raise IncompleteError(
                "source-changed", "it changed after it was listed", subject=self.source.requests.subject
            )
        before = "x-amz-meta-"
        metadata = {
            name[len(before) :]: value for name, value in head.headers.items() if name.startswith(before)
        }
        metadata |= to_metadata(known_from(item.entry, item.entry.digest))
        more = {name: head.headers[name] for name in _CONTENT_HEADERS if name in head.headers}
        write_target = self.write_target
        begun = BegunUpload(
            write_target.requests.bucket, key, begin(write_target.requests, key, metadata, more), source
        )
        write_target.uploads.begin(begun)
        return begun

    def _part_bytes(self, item: Item) -> int:
        """Return the source's part size if it is multipart and the server reports it, else a default."""
        size, etag = item.entry.size, item.entry.etag or ""
        count = etag.rpartition("-")[2] if "-" in etag else ""
        head = self.source.requests.request(
            "HEAD", self.source.key_of(item), query={"partNumber": "1"}, accept=(400, 404, 416, 501)
        )
        first = head.headers.get("content-length", "") if head.status < 300 else ""
        if first.isdigit() and int(first) and count == str(-(-size // int(first))):
            return int(first)
        return max(_PART_BYTES, -(-size // MOST_PARTS))

    def _part(self, item: Item, upload: Upload, begun: BegunUpload, size: int, number: int) -> None:
        first = (number - 1) * size
        length = min(size, item.entry.size - first)
        self.write_target.holder.check()
        wanted = {**self._from(item), "x-amz-copy-source-range": f"bytes={first}-{first + length - 1}"}
        part = upload.copy(number, length, wanted)
        if part is not None:
            self.write_target.uploads.add(begun, number, part)

    def _release_upload(self, begun: BegunUpload, error: BaseException) -> None:
        """Keep a stopped upload for a resuming call; abort it if the bytes are sent another way."""
        if not isinstance(error, HibaliError) or error.code in _ENDS_ALL:
            self.write_target.uploads.leave(begun)
            return
        try:
            abort(self.write_target.requests, begun.key, begun.identifier)
        except HibaliError:
            self.write_target.uploads.leave(begun)
        else:
            self.write_target.uploads.end(begun)


def patient(write_target: WriteTarget) -> WriteTarget:
    """Return the same target with requests that wait for slow responses; the caller closes them."""
    return replace(write_target, requests=write_target.requests.patient(PATIENCE_SECONDS))
