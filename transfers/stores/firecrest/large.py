"""Move large files through the object store of FirecREST, in parts that outlive an interruption."""

from __future__ import annotations

import hashlib
import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

from hibali.errors import HibaliError, IncompleteError, TryLaterError
from hibali.files import private_folder, state_folder, write_atomic
from hibali.http import Bytes, HttpClient, Response
from hibali.retry import growing_intervals, pause
from transfers.stores.filesystem.files import Upload
from transfers.stores.firecrest.client import FirecrestClient, Transfer

_ACTIVE = frozenset({"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED"})
_LONGEST_WAIT = 24 * 3600.0
_NOT_LISTED_SECONDS = 60.0  # in which a job appears
_QUEUED_PIECES = 8


def wait_for_job(client: FirecrestClient, job: str, what: str) -> None:
    """Wait until a job of the service has ended. Raise `TryLaterError` if it did not end well."""
    intervals = growing_intervals(0.3, 20.0)
    waited = 0.0
    while waited < _LONGEST_WAIT:
        found = client.job(job)
        if found is not None and found.state == "COMPLETED":
            return
        if found is None and waited > _NOT_LISTED_SECONDS:
            break
        if found is not None and found.state not in _ACTIVE:
            raise TryLaterError(
                "transfer-failed",
                f"the service's job that {what} ended as {found.state}",
                subject=client.subject,
                transient=False,
            )
        seconds = intervals.next_pause()
        pause(seconds)
        waited += seconds
    raise TryLaterError(
        "transfer-failed",
        f"the service's job {job} that {what} did not end",
        subject=client.subject,
        transient=False,
    )


def address_client(address: str, subject: str) -> tuple[HttpClient, str]:
    """Return a client of the server of an address, and the path and query there. No token is sent there."""
    parts = urlsplit(address)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return HttpClient(f"{parts.scheme}://{parts.netloc}", subject), target


@dataclass(slots=True)
class _Kept:
    """What is recorded of an upload: its transfer, and the tag and sha256 of each complete part."""

    size: int
    transfer: Transfer
    parts: list[tuple[str, str]] = field(default_factory=list)


class Journal:
    """The record of one upload, in the state folder for this account alone, because addresses in it grant access."""

    def __init__(self, site: str, path: bytes) -> None:
        name = hashlib.sha256(site.encode() + b"\n" + path).hexdigest()[:32]
        self._path = private_folder(state_folder() / "firecrest") / f"{name}.json"

    def read(self) -> _Kept | None:
        """Return what was recorded; None if there is nothing that can be used."""
        try:
            record: dict[str, Any] = json.loads(self._path.read_bytes())
            transfer = Transfer(
                str(record["job"]),
                tuple(map(str, record["urls"])),
                str(record["complete"]),
                int(record["part_bytes"]),
            )
            parts = [(str(tag), str(digest)) for tag, digest in record["parts"]]
            return _Kept(int(record["size"]), transfer, parts)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def write(self, kept: _Kept) -> None:
        """Record an upload."""
        transfer = kept.transfer
        record = {
            "size": kept.size,
            "job": transfer.job,
            "urls": transfer.parts,
            "complete": transfer.complete,
            "part_bytes": transfer.part_bytes,
            "parts": kept.parts,
        }
        write_atomic(self._path, json.dumps(record).encode())

    def remove(self) -> None:
        """Forget the upload."""
        self._path.unlink(missing_ok=True)


class _Part:
    """One part that is sent while its pieces come, by a thread."""

    def __init__(self, address: str, size: int, subject: str) -> None:
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_QUEUED_PIECES)
        self._subject = subject
        self._response: Response | None = None
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._send, args=(address, size), daemon=True)
        self._thread.start()

    def _send(self, address: str, size: int) -> None:
        client, target = address_client(address, self._subject)
        try:
            self._response = client.upload(target, self._arriving(), size)
        except BaseException as problem:  # noqa: BLE001  # it is raised in the thread that writes
            self._problem = problem
        finally:
            client.close()

    def _arriving(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) is not None:
            yield piece

    def write(self, piece: bytes) -> None:
        """Send the next piece. Raise the error of an earlier one."""
        while self._thread.is_alive():
            try:
                self._pieces.put(piece, timeout=0.5)
            except queue.Full:
                continue
            return
        raise self._error()

    def finish(self) -> str:
        """Return the tag of the part when it is stored."""
        if self._thread.is_alive():
            self._pieces.put(None)
        self._thread.join()
        tag = self._response.etag if self._response is not None and self._response.status < 300 else ""
        if not tag:
            raise self._error()
        return tag

    def _error(self) -> HibaliError:
        if isinstance(self._problem, HibaliError):
            return self._problem
        status = self._response.status if self._response is not None else 0
        return TryLaterError(
            "busy", f"the object store did not take a part (status {status})", subject=self._subject
        )


class PartsUpload(Upload):
    """A large file on its way to a path: its parts go to the object store, and a job of the service makes the file of them."""

    def __init__(
        self, client: FirecrestClient, path: bytes, size: int, finish: Callable[[str], None]
    ) -> None:
        """`path` is a partial name; `finish` gets the sha256 of what was sent when the file is there."""
        self._client = client
        self._path = path
        self._finish = finish
        self._journal = Journal(client.subject, path)
        self._kept = self._resumed(size) or self._begun(size)
        self._summed, self._part_summed = hashlib.sha256(), hashlib.sha256()
        self._number = 0
        self._in_part = 0
        self._part: _Part | None = None

    def _resumed(self, size: int) -> _Kept | None:
        """Return an upload that was interrupted, if its job still waits for the parts."""
        kept = self._journal.read()
        if kept is None or kept.size != size:
            return None
        job = self._client.job(kept.transfer.job)
        return kept if job is not None and job.state in _ACTIVE else None

    def _begun(self, size: int) -> _Kept:
        kept = _Kept(size, self._client.begin_upload(self._path, size))
        self._journal.write(kept)
        return kept

    @property
    def discards(self) -> bool:
        """See Upload."""
        return True

    def write(self, content: Bytes) -> None:
        """See Upload."""
        left = memoryview(content)
        part_bytes = self._kept.transfer.part_bytes
        while left:
            piece = left[: part_bytes - self._in_part]
            left = left[len(piece) :]
            self._write_piece(bytes(piece))
            if self._in_part == part_bytes:
                self._end_part()

    def _write_piece(self, piece: bytes) -> None:
        self._summed.update(piece)
        self._part_summed.update(piece)
        self._in_part += len(piece)
        if self._number < len(self._kept.parts):
            return  # it is stored; its digest is compared at its end
        if self._part is None:
            transfer = self._kept.transfer
            size = min(transfer.part_bytes, self._kept.size - self._number * transfer.part_bytes)
            self._part = _Part(transfer.parts[self._number], size, self._client.subject)
        self._part.write(piece)

    def _end_part(self) -> None:
        digest = self._part_summed.hexdigest()
        if self._part is not None:
            self._kept.parts.append((self._part.finish(), digest))
            self._journal.write(self._kept)
        elif self._kept.parts[self._number][1] != digest:
            self._journal.remove()
            self._client.cancel(self._kept.transfer.job)
            raise TryLaterError(
                "changed",
                "the parts of an interrupted upload are of another content, so they are not used",
                subject=self._client.subject,
                hint="Run the same command again.",
                transient=False,
            )
        self._part, self._part_summed = None, hashlib.sha256()
        self._number, self._in_part = self._number + 1, 0

    def commit(self) -> None:
        """See Upload."""
        if self._in_part:
            self._end_part()
        self._complete()
        wait_for_job(self._client, self._kept.transfer.job, "writes the file")
        self._finish(self._summed.hexdigest())
        self._journal.remove()

    def _complete(self) -> None:
        """Make one object of the parts; one that was made before is no error."""
        lines = [
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(_quoted(tag))}</ETag></Part>"
            for number, (tag, _) in enumerate(self._kept.parts, 1)
        ]
        body = f"<CompleteMultipartUpload>{''.join(lines)}</CompleteMultipartUpload>".encode()
        client, target = address_client(self._kept.transfer.complete, self._client.subject)
        try:
            response = client.request("POST", target, body=body)
        finally:
            client.close()
        if response.status >= 300 or b"<Error>" in response.body:
            if response.status == 404:  # NoSuchUpload: it was completed before an interruption
                return
            raise IncompleteError(
                "refused-by-server",
                f"the object store did not complete the file (status {response.status})",
                subject=self._client.subject,
            )

    def abandon(self) -> None:
        """See Upload; the parts stay for the next one."""


def _quoted(tag: str) -> str:
    return tag if tag.startswith('"') else f'"{tag}"'
