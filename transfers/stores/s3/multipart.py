"""Upload large objects in parts, resumable, with a sha256 each."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hibali.documents import line_of_json
from hibali.errors import HibaliError, IncompleteError
from hibali.files import private_folder, state_folder, write_atomic
from hibali.http.client import Bytes, Response
from hibali.ledger import Journal, now, read_records
from hibali.text import path_fields, path_from_fields
from transfers.agent.identity import boot_identifier
from transfers.agent.lease import has_ended, this_process
from transfers.stores.s3.errors import Said, code_in, error_of
from transfers.stores.s3.requests import (
    CHECKSUM,
    Pieces,
    Requests,
    checksum_of,
    children,
    complete_document,
    fields,
    hex_of,
    key_bytes,
    name_of,
    parse,
    text,
)

_SUFFIX = ".uploads.jsonl"
_SLACK = 2_000  # rewrite the file when it has more outdated lines than this
_SYNC_SECONDS = 1.0
_NO_OWNER: dict[str, Any] = {}


class Part(NamedTuple):
    """A part as it was sent, and the server's ETag for it."""

    size: int
    sha256: str
    etag: str


_Parts = dict[int, Part]


@dataclass(slots=True)
class BegunUpload:
    """An unfinished upload: full key, the server's id, source, owner process, and uploaded parts.

    `source` holds everything that must match before another call resumes the upload.
    """

    bucket: str
    key: bytes
    identifier: str
    source: dict[str, Any]
    at: str = field(default_factory=now)
    owner: dict[str, Any] = field(default_factory=this_process)
    parts: _Parts = field(default_factory=dict)

    @property
    def left(self) -> bool:
        """Whether the upload was released, or its process on this host has ended."""
        return not self.owner or _has_ended(self.owner)

    @property
    def elsewhere(self) -> bool:
        """Whether another host owns the upload (shared state folder); its process cannot be checked here."""
        return bool(self.owner) and self.owner.get("host") != socket.gethostname()

    def to_record(self) -> dict[str, Any]:
        """Return its first line in the file."""
        return {
            "upload": self.identifier,
            "bucket": self.bucket,
            **path_fields(self.key, "key"),
            "source": self.source,
            "at": self.at,
            "by": self.owner,
        }


class Uploads:
    """The append-only upload record of one root; thread-safe. Errors in it only cause resent bytes."""

    def __init__(self, site: str, endpoint: str, bucket: str, root: bytes) -> None:
        identity = b"\n".join((endpoint.encode(), bucket.encode(), root))
        self._path = _folder(site) / f"{hashlib.sha256(identity).hexdigest()[:32]}{_SUFFIX}"
        self._begun: dict[str, BegunUpload] | None = None
        self._journal: Journal | None = None
        self._lock = threading.Lock()
        self._synced = time.monotonic()

    def of_key(self, key: bytes) -> list[BegunUpload]:
        """Return the uploads begun for a key, the newest last."""
        with self._lock:
            return [begun for begun in self._load().values() if begun.key == key]

    def begin(self, begun: BegunUpload) -> None:
        """Record an upload durably before its first part is sent, so that no stored part is unknown here."""
        with self._lock:
            self._load()[begun.identifier] = begun
            self._append(begun.to_record(), durable=True)

    def claim(self, begun: BegunUpload) -> None:
        """Make this process the owner, to resume the upload."""
        with self._lock:
            begun.owner = this_process()
            self._append({"taken": begun.identifier, "by": begun.owner}, durable=True)

    def add(self, begun: BegunUpload, number: int, part: Part) -> None:
        """Record an uploaded part; ignore write errors, because the part would only be sent again."""
        with self._lock, contextlib.suppress(HibaliError):
            begun.parts[number] = part
            # A machine crash loses at most the parts of the last second, a killed process none.
            moment = time.monotonic()
            durable = moment - self._synced > _SYNC_SECONDS
            self._synced = moment if durable else self._synced
            self._append({"part": number, "of": begun.identifier, **part._asdict()}, durable=durable)

    def leave(self, begun: BegunUpload) -> None:
        """Release the upload, so that another process can resume it."""
        with self._lock, contextlib.suppress(HibaliError):
            begun.owner = _NO_OWNER
            self._append({"taken": begun.identifier, "by": _NO_OWNER}, durable=True)

    def end(self, begun: BegunUpload) -> None:
        """Record that the upload was completed or aborted."""
        with self._lock, contextlib.suppress(HibaliError):
            self._load().pop(begun.identifier, None)
            self._append({"ended": begun.identifier})

    def close(self) -> None:
        """Close the file; safe to call twice."""
        with self._lock:
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    def _append(self, record: dict[str, Any], *, durable: bool = False) -> None:
        if self._journal is None:
            self._journal = Journal(self._path)
        self._journal.append(record, durable=durable)

    def _load(self) -> dict[str, BegunUpload]:
        if self._begun is None:
            self._begun, count = _read(self._path)
            if count > sum(1 + len(begun.parts) for begun in self._begun.values()) + _SLACK:
                _rewrite(self._path, self._begun)
        return self._begun


def begun_at(site: str) -> list[BegunUpload]:
    """Return all unfinished uploads that this machine began at a site, for every root."""
    return [begun for path in _files(site) for begun in _read(path)[0].values()]


def forget(site: str, identifiers: set[str]) -> None:
    """Record in every file of the site that these uploads have ended."""
    for path in _files(site):
        known = identifiers & _read(path)[0].keys()
        if known:
            with Journal(path) as journal:
                for identifier in sorted(known):
                    journal.append({"ended": identifier})


def _files(site: str) -> Iterator[Path]:
    yield from sorted(_folder(site).glob(f"*{_SUFFIX}"))


def _folder(site: str) -> Path:
    return private_folder(private_folder(state_folder() / "sites") / site)


def _read(path: Path) -> tuple[dict[str, BegunUpload], int]:
    found: dict[str, BegunUpload] = {}
    count = 0
    with contextlib.suppress(OSError):
        for record in read_records(path):
            count += 1
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                _read_record(found, record)
    return found, count


def _read_record(found: dict[str, BegunUpload], record: dict[str, Any]) -> None:
    if "ended" in record:
        found.pop(record["ended"], None)
    elif "taken" in record:
        found[record["taken"]].owner = dict(record["by"])
    elif "part" in record:
        part = Part(int(record["size"]), str(record["sha256"]), str(record["etag"]))
        found[record["of"]].parts[int(record["part"])] = part
    else:
        key = path_from_fields(record, "key")
        fields_of_upload = str(record["bucket"]), key, str(record["upload"]), dict(record["source"])
        found[fields_of_upload[2]] = BegunUpload(
            *fields_of_upload, at=str(record["at"]), owner=dict(record["by"])
        )


def _rewrite(path: Path, begun: dict[str, BegunUpload]) -> None:
    lines = []
    for one in begun.values():
        lines.append(one.to_record())
        lines += [
            {"part": number, "of": one.identifier, **part._asdict()} for number, part in one.parts.items()
        ]
    with contextlib.suppress(OSError):
        write_atomic(path, "".join(f"{line_of_json(line)}\n" for line in lines).encode("ascii"))


def _has_ended(process: dict[str, Any]) -> bool:
    """Return whether a process of this host has ended; False for another host (shared home)."""
    if process.get("host") != socket.gethostname():
        return False
    return process.get("boot") != boot_identifier() or has_ended(process)


MOST_PARTS = 9500  # the protocol allows 10,000
_NO_SUCH_UPLOAD = frozenset({400, 404, 405, 501})
LEAST_BYTES = 5 * 1024 * 1024  # except the last (Amazon S3 user guide, "multipart upload limits")


def part_bytes(size: int, segment: int) -> int:
    """Return the part size for an object of `size` bytes that arrives in segments of `segment` bytes."""
    wanted = max(LEAST_BYTES, -(-size // MOST_PARTS))
    return max(1, -(-wanted // segment)) * segment


def begin(
    requests: Requests, key: bytes, metadata: Mapping[str, str], more: Mapping[str, str] | None = None
) -> str:
    """Begin an upload, invisible until completed, and return its id; `more` are other headers."""
    headers = {**(more or {}), **{f"x-amz-meta-{name}": value for name, value in metadata.items()}}
    response = requests.request("POST", key, query={"uploads": ""}, headers=headers)
    identifier = text(parse(response.body, requests.subject), "UploadId")
    if not identifier:
        raise IncompleteError("refused-by-server", "the server sent no upload id", subject=requests.subject)
    return identifier


class Upload:
    """A multipart upload. Several threads may call `send`; one thread calls the rest.

    If the server does not verify hashes (`verifies_hashes`), `claimed` says whether each part's ETag was its MD5.
    """

    def __init__(
        self,
        requests: Requests,
        key: bytes,
        identifier: str,
        *,
        checksum: bool,
        verifies_hashes: bool,
        existing: Mapping[int, Part],
    ) -> None:
        """Set the fields; `checksum` adds one that the server checks, `existing` are not sent again."""
        self._requests = requests
        self._key = key
        self._checksum = checksum
        self._existing = existing
        self.identifier = identifier
        self.claimed = not verifies_hashes
        self._etags: dict[int, str] = {}
        self._size = 0
        self._lock = threading.Lock()

    def send(self, number: int, content: Bytes | Pieces, sha256: str | None = None) -> Part | None:
        """Send part `number`, counted from 1; return None if the server already has these bytes.

        A `sha256` from the source replaces the one that is computed here, where the server verifies it.
        """
        sha256 = sha256 or hex_of(hashlib.sha256(), content)
        md5 = hex_of(hashlib.md5(usedforsecurity=False), content) if self.claimed else ""
        part = self._existing.get(number)
        is_stored = part is not None and (part.size, part.sha256) == (len(content), sha256)
        if part is None or not is_stored:
            part = Part(len(content), sha256, self._put(number, content, sha256))
        with self._lock:
            self._etags[number] = part.etag
            self.claimed = self.claimed and part.etag == md5
            self._size += part.size
        return None if is_stored else part

    def keep_existing(self) -> None:
        """Use all existing parts: another machine of this operation sent them."""
        for number, part in self._existing.items():
            self._etags[number] = part.etag
            self._size += part.size

    def _put(self, number: int, content: Bytes | Pieces, sha256: str) -> str:
        query = {"partNumber": str(number), "uploadId": self.identifier}
        headers = {CHECKSUM: checksum_of(sha256)} if self._checksum else {}
        return self._requests.request(
            "PUT", self._key, query=query, headers=headers, body=content, sha256=sha256
        ).etag

    def copy(self, number: int, length: int, headers: Mapping[str, str]) -> Part | None:
        """Copy part `number` (`length` bytes) from the source in `headers`; return None if it exists."""
        part = self._existing.get(number)
        is_stored = part is not None and part.size == length
        if part is None or not is_stored:
            query = {"partNumber": str(number), "uploadId": self.identifier}
            response = self._requests.request("PUT", self._key, query=query, headers=headers)
            part = Part(length, "", copied(response, self._requests.subject)["ETag"].strip('"'))
        with self._lock:
            self._etags[number] = part.etag
            self._size += length
        return None if is_stored else part

    def complete(self, condition: Mapping[str, str] | None = None) -> str:
        """Complete the upload; return the ETag from HEAD, because some servers return another one (rclone).

        `condition` are headers for the object that must exist now.
        """
        self._complete(condition or {})
        head = self._requests.request("HEAD", self._key)
        if head.headers.get("content-length") != str(self._size):
            raise IncompleteError(
                "corrupt",
                "the size of the object differs from the sum of its parts",
                subject=self._requests.subject,
                transient=True,
            )
        return head.etag

    def _complete(self, condition: Mapping[str, str]) -> None:
        """Send CompleteMultipartUpload; an earlier request may have completed it, and its response was lost."""
        etags = [self._etags[number] for number in range(1, len(self._etags) + 1)]
        query = {"uploadId": self.identifier}
        body = complete_document(etags)
        response = self._requests.request(
            "POST", self._key, query=query, headers=condition, body=body, accept=(404,)
        )
        if response.status == 404:
            self._find_completed(code_in(response.body))

    def _find_completed(self, code: str) -> None:
        """Check whether an earlier request completed the missing upload and its response was lost."""
        head = self._requests.request("HEAD", self._key, accept=(404,))
        same = head.headers.get("content-length") == str(self._size)
        if head.status >= 300 or not same or not head.etag.endswith(f"-{len(self._etags)}"):
            raise error_of(404, Said(code), self._requests.subject)


def copied(response: Response, subject: str) -> dict[str, str]:
    """Parse the response to CopyObject or UploadPartCopy."""
    root = parse(response.body, subject)
    result = fields(root)
    if name_of(root) not in {"CopyObjectResult", "CopyPartResult"} or "ETag" not in result:
        raise error_of(500, Said(code_in(response.body)), subject)
    return result


def stored_parts(requests: Requests, key: bytes, identifier: str) -> dict[int, tuple[int, str]] | None:
    """Return size and ETag of each stored part (ListParts); None without such an upload or response."""
    found: dict[int, tuple[int, str]] = {}
    query = {"uploadId": identifier, "max-parts": "1000"}
    while True:
        response = requests.request("GET", key, query=query, accept=_NO_SUCH_UPLOAD)
        if response.status >= 300:
            return None
        root = parse(response.body, requests.subject)
        if name_of(root) != "ListPartsResult":
            return None
        before = len(found)
        for element in children(root, "Part"):
            number, size = text(element, "PartNumber"), text(element, "Size")
            if number.isdigit() and size.isdigit():
                found[int(number)] = int(size), text(element, "ETag").strip('"')
        if text(root, "IsTruncated") != "true":
            return found
        if len(found) == before:
            return None
        query["part-number-marker"] = text(root, "NextPartNumberMarker")


def abort(requests: Requests, key: bytes, identifier: str) -> None:
    """Abort an upload; a missing one is no error."""
    requests.request("DELETE", key, query={"uploadId": identifier}, accept=(404,))


class Pending(NamedTuple):
    """An incomplete upload as the server lists it; `begun` has the server's format."""

    key: bytes
    identifier: str
    begun: str


def pending_uploads(requests: Requests, prefix: bytes) -> Iterator[Pending]:
    """List uploads below a prefix (ListMultipartUploads). Raise `IncompleteError` if the server cannot."""
    query = {"uploads": "", "encoding-type": "url", "prefix": prefix.decode()}
    seen: set[tuple[str, str]] = set()
    while True:
        root = parse(requests.request("GET", query=query).body, requests.subject)
        encoded = text(root, "EncodingType") == "url"
        for element in children(root, "Upload"):
            key = key_bytes(text(element, "Key"), encoded=encoded)
            if key.startswith(prefix):
                yield Pending(key, text(element, "UploadId"), text(element, "Initiated"))
        if text(root, "IsTruncated") != "true":
            return
        key_marker = key_bytes(text(root, "NextKeyMarker"), encoded=encoded).decode()
        marker = key_marker, text(root, "NextUploadIdMarker")
        if marker in seen:
            raise IncompleteError(
                "listing-violation",
                "the server announces a further page of the list of uploads, but sends the same page again",
                subject=requests.subject,
            )
        seen.add(marker)
        query |= {"key-marker": marker[0], "upload-id-marker": marker[1]}
