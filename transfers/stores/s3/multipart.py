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
from hibali.http import Answer, Bytes
from hibali.ledger import Journal, now, read_records
from hibali.text import path_fields, path_from_fields
from transfers.agent.lease import boot_identifier, is_gone, this_process
from transfers.stores.s3.requests import (
    CHECKSUM,
    Requests,
    checksum_of,
    children,
    code_in,
    complete_document,
    error_of,
    fields,
    key_bytes,
    name_of,
    parse,
    text,
)

_SUFFIX = ".uploads.jsonl"
_SLACK = 2_000  # so many lines may be out of date before the file is written anew
_SYNC_SECONDS = 1.0
_NOBODY: dict[str, Any] = {}


class Part(NamedTuple):
    """One part as it was sent, and the ETag that the server answered with."""

    size: int
    sha256: str
    etag: str


_Parts = dict[int, Part]


@dataclass(slots=True)
class BegunUpload:
    """One upload: whole key, the server's id, what it is of, who works on it, and the parts that arrived.

    `source` is everything that must be the same for another call to go on with it.
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
        """Whether provably nobody works on it: given up, or its process of this machine is gone."""
        return not self.owner or _is_gone(self.owner)

    @property
    def elsewhere(self) -> bool:
        """Whether another host began it, which shares this state folder: nothing can be proven of it from here."""
        return bool(self.owner) and self.owner.get("host") != socket.gethostname()

    def to_record(self) -> dict[str, Any]:
        """Its first line."""
        return {
            "upload": self.identifier,
            "bucket": self.bucket,
            **path_fields(self.key, "key"),
            "source": self.source,
            "at": self.at,
            "by": self.owner,
        }


class Uploads:
    """One append-only file for one root; what is wrong with it costs bytes sent again, never truth. Threads may share it."""

    def __init__(self, site: str, endpoint: str, bucket: str, root: bytes) -> None:
        words = b"\n".join((endpoint.encode(), bucket.encode(), root))
        self._path = _folder(site) / f"{hashlib.sha256(words).hexdigest()[:32]}{_SUFFIX}"
        self._begun: dict[str, BegunUpload] | None = None
        self._journal: Journal | None = None
        self._lock = threading.Lock()
        self._synced = time.monotonic()

    def of_key(self, key: bytes) -> list[BegunUpload]:
        """Those begun for that key, the youngest last."""
        with self._lock:
            return [begun for begun in self._load().values() if begun.key == key]

    def begin(self, begun: BegunUpload) -> None:
        """Durable before its first part is sent, so that whatever is stored there is known here."""
        with self._lock:
            self._load()[begun.identifier] = begun
            self._append(begun.to_record(), durable=True)

    def take(self, begun: BegunUpload) -> None:
        """Go on with it in this process."""
        with self._lock:
            begun.owner = this_process()
            self._append({"taken": begun.identifier, "by": begun.owner}, durable=True)

    def add(self, begun: BegunUpload, number: int, part: Part) -> None:
        """A part has arrived. Where this cannot be kept, the part would be sent again: no reason to stop."""
        with self._lock, contextlib.suppress(HibaliError):
            begun.parts[number] = part
            # A crash of the machine loses the parts of a moment, a killed process none.
            moment = time.monotonic()
            durable = moment - self._synced > _SYNC_SECONDS
            self._synced = moment if durable else self._synced
            self._append({"part": number, "of": begun.identifier, **part._asdict()}, durable=durable)

    def leave(self, begun: BegunUpload) -> None:
        """Nobody works on it any more; whoever comes next may."""
        with self._lock, contextlib.suppress(HibaliError):
            begun.owner = _NOBODY
            self._append({"taken": begun.identifier, "by": _NOBODY}, durable=True)

    def end(self, begun: BegunUpload) -> None:
        """It was completed or aborted."""
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
    """All that this machine began at a site and did not end, whatever the root."""
    return [begun for path in _files(site) for begun in _read(path)[0].values()]


def forget(site: str, identifiers: set[str]) -> None:
    """These have ended: told to every file of the site that knows one of them."""
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
                _take_line(found, record)
    return found, count


def _take_line(found: dict[str, BegunUpload], record: dict[str, Any]) -> None:
    if "ended" in record:
        found.pop(record["ended"], None)
    elif "taken" in record:
        found[record["taken"]].owner = dict(record["by"])
    elif "part" in record:
        part = Part(int(record["size"]), str(record["sha256"]), str(record["etag"]))
        found[record["of"]].parts[int(record["part"])] = part
    else:
        key = path_from_fields(record, "key")
        words = str(record["bucket"]), key, str(record["upload"]), dict(record["source"])
        found[words[2]] = BegunUpload(*words, at=str(record["at"]), owner=dict(record["by"]))


def _rewrite(path: Path, begun: dict[str, BegunUpload]) -> None:
    lines = []
    for one in begun.values():
        lines.append(one.to_record())
        lines += [
            {"part": number, "of": one.identifier, **part._asdict()} for number, part in one.parts.items()
        ]
    with contextlib.suppress(OSError):
        write_atomic(path, "".join(f"{line_of_json(line)}\n" for line in lines).encode("ascii"))


def _is_gone(process: dict[str, Any]) -> bool:
    """Whether a process of this host is provably gone; on another host (a shared home) nothing is provable."""
    if process.get("host") != socket.gethostname():
        return False
    return process.get("boot") != boot_identifier() or is_gone(process)


MOST_PARTS = 9500  # the protocol allows 10,000
_NO_ANSWER = frozenset({400, 404, 405, 501})
LEAST_BYTES = 5 * 1024 * 1024  # of any part but the last (Amazon S3 user guide, "multipart upload limits")


def part_bytes(size: int, segment: int) -> int:
    """How large the parts of an object of `size` bytes are, when it comes in segments of `segment` bytes."""
    wanted = max(LEAST_BYTES, -(-size // MOST_PARTS))
    return max(1, -(-wanted // segment)) * segment


def begin(
    requests: Requests, key: bytes, metadata: Mapping[str, str], more: Mapping[str, str] | None = None
) -> str:
    """Begin an upload, of which nothing is seen before it is completed; the server's id for it. `more` are other headers."""
    headers = {**(more or {}), **{f"x-amz-meta-{name}": value for name, value in metadata.items()}}
    answer = requests.ask("POST", key, query={"uploads": ""}, headers=headers)
    identifier = text(parse(answer.body, requests.subject), "UploadId")
    if not identifier:
        raise IncompleteError("refused-by-server", "the server gave no upload id", subject=requests.subject)
    return identifier


class Upload:
    """One multipart upload. `send` may be called by several threads at once; the rest by one.

    Where the server `proves` nothing, `claimed` tells whether the ETag of each part was its MD5.
    """

    def __init__(
        self,
        requests: Requests,
        key: bytes,
        identifier: str,
        *,
        checksum: bool,
        proves: bool,
        existing: Mapping[int, Part],
    ) -> None:
        """With `checksum` each part has one that the server checks; `existing` are parts that need not be sent again."""
        self._requests = requests
        self._key = key
        self._checksum = checksum
        self._existing = existing
        self.identifier = identifier
        self.claimed = not proves
        self._etags: dict[int, str] = {}
        self._size = 0
        self._lock = threading.Lock()

    def send(self, number: int, content: Bytes) -> Part | None:
        """Send part `number`, counted from 1; None where these very bytes stand there already."""
        sha256 = hashlib.sha256(content).hexdigest()
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() if self.claimed else ""
        part = self._existing.get(number)
        stood = part is not None and (part.size, part.sha256) == (len(content), sha256)
        if part is None or not stood:
            part = Part(len(content), sha256, self._put(number, content, sha256))
        with self._lock:
            self._etags[number] = part.etag
            self.claimed = self.claimed and part.etag == md5
            self._size += part.size
        return None if stood else part

    def _put(self, number: int, content: Bytes, sha256: str) -> str:
        query = {"partNumber": str(number), "uploadId": self.identifier}
        headers = {CHECKSUM: checksum_of(sha256)} if self._checksum else {}
        return self._requests.ask(
            "PUT", self._key, query=query, headers=headers, body=content, sha256=sha256
        ).etag

    def copy(self, number: int, length: int, headers: Mapping[str, str]) -> Part | None:
        """Have part `number`, of `length` bytes, copied from where `headers` say; None where it stands there already."""
        part = self._existing.get(number)
        stood = part is not None and part.size == length
        if part is None or not stood:
            query = {"partNumber": str(number), "uploadId": self.identifier}
            answer = self._requests.ask("PUT", self._key, query=query, headers=headers)
            part = Part(length, "", copied(answer, self._requests.subject)["ETag"].strip('"'))
        with self._lock:
            self._etags[number] = part.etag
            self._size += length
        return None if stood else part

    def complete(self, condition: Mapping[str, str] | None = None) -> str:
        """Make it the object; its ETag as it is looked up, for that of the answer is another at some servers (rclone).

        `condition` are headers that say what must stand there now.
        """
        self._complete(condition or {})
        head = self._requests.ask("HEAD", self._key)
        if head.headers.get("content-length") != str(self._size):
            raise IncompleteError(
                "corrupt",
                "the object is not as large as its parts",
                subject=self._requests.subject,
                transient=True,
            )
        return head.etag

    def _complete(self, condition: Mapping[str, str]) -> None:
        """An error may come with status 200 (Amazon S3 API reference, CompleteMultipartUpload)."""
        etags = [self._etags[number] for number in range(1, len(self._etags) + 1)]
        query = {"uploadId": self.identifier}
        body = complete_document(etags)
        answer = self._requests.ask(
            "POST", self._key, query=query, headers=condition, body=body, accept=(404,)
        )
        if answer.status == 404:
            self._find_completed(code_in(answer.body))
            return
        root = parse(answer.body, self._requests.subject)
        if name_of(root) == "Error":
            raise error_of(500, code_in(answer.body), self._requests.subject)

    def _find_completed(self, code: str) -> None:
        """The upload is gone: it may be that it was completed before, and the answer lost on the way."""
        head = self._requests.ask("HEAD", self._key, accept=(404,))
        same = head.headers.get("content-length") == str(self._size)
        if head.status >= 300 or not same or not head.etag.endswith(f"-{len(self._etags)}"):
            raise error_of(404, code, self._requests.subject)


def copied(answer: Answer, subject: str) -> dict[str, str]:
    """What CopyObject or UploadPartCopy tells of the copy; an answer of status 200 may say that it failed."""
    root = parse(answer.body, subject)
    told = fields(root)
    if name_of(root) not in {"CopyObjectResult", "CopyPartResult"} or "ETag" not in told:
        raise error_of(500, code_in(answer.body), subject)
    return told


def standing_parts(requests: Requests, key: bytes, identifier: str) -> dict[int, tuple[int, str]] | None:
    """ListParts: size and ETag of each part that the server has; None where there is no such upload, or no such answer."""
    found: dict[int, tuple[int, str]] = {}
    query = {"uploadId": identifier, "max-parts": "1000"}
    while True:
        answer = requests.ask("GET", key, query=query, accept=_NO_ANSWER)
        if answer.status >= 300:
            return None
        root = parse(answer.body, requests.subject)
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
    """Abort an upload; one that is gone is done."""
    requests.ask("DELETE", key, query={"uploadId": identifier}, accept=(404,))


class Pending(NamedTuple):
    """An upload that is neither completed nor aborted, as the server lists it; `begun` as the server writes it."""

    key: bytes
    identifier: str
    begun: str


def pending_uploads(requests: Requests, prefix: bytes) -> Iterator[Pending]:
    """ListMultipartUploads: all below a prefix of keys. Raises `IncompleteError` where the server cannot tell."""
    query = {"uploads": "", "encoding-type": "url", "prefix": prefix.decode()}
    seen: set[tuple[str, str]] = set()
    while True:
        root = parse(requests.ask("GET", query=query).body, requests.subject)
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
                "the list of uploads does not go on where it says that more is to come",
                subject=requests.subject,
            )
        seen.add(marker)
        query |= {"key-marker": marker[0], "upload-id-marker": marker[1]}
