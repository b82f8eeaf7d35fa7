"""Move large files through the object store of FirecREST, in parts that outlive an interruption."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

from hibali.errors import HibaliError, IncompleteError, TryLaterError
from hibali.http.client import Bytes, Response
from hibali_plugins.facilities.firecrest.client import ACTIVE, FirecrestClient, Transfer
from hibali_plugins.facilities.operations.waiting import transfer_failed
from transfers.stores.server.files import Upload
from transfers.stores.server.state_records import StateRecord

ENDED_WELL = frozenset({"COMPLETED", "F"})  # of Slurm and of PBS
_QUEUED_PIECES = 8


def wait_for_job(client: FirecrestClient, job: str, what: str) -> None:
    """Wait until a job of the service has ended. Raise `TryLaterError` if it did not end well."""
    state = client.file_jobs.wait(job, what)
    if state not in ENDED_WELL:
        raise transfer_failed(client.subject, f"that {what} ended as {state}")


class StagedFiles:
    """Large files that the service copied to the object store, from where pieces of them are read; thread-safe."""

    def __init__(self, client: FirecrestClient, plain: Callable[[bytes], tuple[bytes, bytes]]) -> None:
        """`plain` returns a path to a file that the scripts of the service can read, and what is removed afterwards, if anything."""
        self._client = client
        self._plain = plain
        self._addresses: dict[bytes, tuple[str, str]] = {}  # by path; with the tag of the file
        self._staging = threading.Lock()

    def read(self, path: bytes, tag: str, size: int, offset: int, length: int) -> bytes:
        """Return a piece of a file that has this tag and size; less than it, if the object store returns less."""
        response = self._get(self._address(path, tag, size), offset, length)
        if response.status in {403, 404}:  # the address has expired
            with self._staging:
                self._addresses.pop(path, None)
                StateRecord("firecrest", "download", self._client.subject, path).remove()
        return response.body if response.status == 206 else b""

    def _get(self, address: str, offset: int, length: int) -> Response:
        client, target = self._client.addresses.client_of(address)
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        return client.request("GET", target, headers=headers, limit=length)

    def _address(self, path: bytes, tag: str, size: int) -> str:
        """Return where a file is in the object store; what an interrupted operation copied there is used again."""
        with self._staging:
            known, address = self._addresses.get(path, ("", ""))
            if known == tag:
                return address
            record = StateRecord("firecrest", "download", self._client.subject, path)
            kept = record.read()
            if kept.get("tag") == tag and self._size_at(kept.get("address")) == size:
                address = str(kept["address"])
            else:
                address = self._stage(path, size)
                record.remove_old()
                record.write({"tag": tag, "address": address})
            self._addresses[path] = tag, address
            return address

    def _stage(self, path: bytes, size: int) -> str:
        """Copy a file to the object store. Raise `TryLaterError` if it is cut off: earlier versions of the service did that silently."""
        plain, temporary = self._plain(path)
        try:
            transfer = self._client.file_jobs.begin(
                lambda: self._client.begin_download(plain), lambda begun: begun.job
            )
            wait_for_job(self._client, transfer.job, "reads the file")
        finally:
            if temporary:
                self._client.remove(temporary)
        if self._size_at(transfer.download) != size:
            raise TryLaterError(
                "cut-off", "the service sent less than it has of the file", subject=self._client.subject
            )
        return transfer.download

    def _size_at(self, address: Any) -> int:
        response = self._get(self._client.addresses.checked(address), 0, 1)
        size = response.headers.get("content-range", "").rpartition("/")[2]
        return int(size) if response.status == 206 and size.isdecimal() else -1


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """A file to upload: its path, the partial name beside it that the service writes, and its size.

    `written` is the same partial file, as the scripts of the service can name it.
    """

    path: bytes
    partial: bytes
    size: int
    written: bytes = b""


@dataclass(slots=True)
class _Kept:
    """What is recorded of an upload: its target, its transfer, and the tag and sha256 of each complete part."""

    target: UploadTarget
    transfer: Transfer
    parts: list[tuple[str, str]] = field(default_factory=list)


def forget_upload(client: FirecrestClient, path: bytes) -> None:
    """Forget an interrupted upload, and end its job."""
    journal = _Journal(client.subject, path)
    kept = journal.read()
    journal.remove()
    if kept is not None:
        client.cancel(kept.transfer.job)


class _Journal:
    """The record of one upload."""

    def __init__(self, site: str, path: bytes) -> None:
        self._record = StateRecord("firecrest", "upload", site, path)
        self._path = path

    def read(self) -> _Kept | None:
        """Return what was recorded; None if there is nothing that can be used."""
        record = self._record.read()
        try:
            transfer = Transfer(
                str(record["job"]),
                tuple(map(str, record["urls"])),
                str(record["complete"]),
                int(record["part_bytes"]),
            )
            partial = str(record["partial"]).encode("utf-8", "surrogateescape")
            parts = [(str(tag), str(digest)) for tag, digest in record["parts"]]
            return _Kept(UploadTarget(self._path, partial, int(record["size"])), transfer, parts)
        except (ValueError, KeyError, TypeError):
            return None

    def write(self, kept: _Kept) -> None:
        """Record an upload."""
        transfer = kept.transfer
        record = {
            "size": kept.target.size,
            "partial": kept.target.partial.decode("utf-8", "surrogateescape"),
            "job": transfer.job,
            "urls": transfer.parts,
            "complete": transfer.complete,
            "part_bytes": transfer.part_bytes,
            "parts": kept.parts,
        }
        self._record.write(record)

    def remove(self) -> None:
        """Forget the upload, and others that were given up long ago."""
        self._record.remove()
        self._record.remove_old()


class _Part:
    """One part that is sent while its pieces come, by a thread."""

    def __init__(self, address: str, size: int, client: FirecrestClient) -> None:
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_QUEUED_PIECES)
        self._client = client
        self._response: Response | None = None
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._send, args=(address, size), daemon=True)
        self._thread.start()

    def _send(self, address: str, size: int) -> None:
        try:
            client, target = self._client.addresses.client_of(address)
            self._response = client.upload(target, self._arriving(), size)
        except BaseException as problem:  # noqa: BLE001  # it is raised in the thread that writes
            self._problem = problem

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
            "busy", f"the object store did not take a part (status {status})", subject=self._client.subject
        )


class PartsUpload(Upload):
    """A large file on its way to a path: its parts go to the object store, and a job of the service makes the file of them."""

    def __init__(
        self, client: FirecrestClient, target: UploadTarget, finish: Callable[[bytes, str], None]
    ) -> None:
        """`finish` gets the path of the partial file that the service wrote, and the sha256 of what was sent."""
        self._client = client
        self._finish = finish
        self._journal = _Journal(client.subject, target.path)
        self._kept = self._resumed(target) or self._begun(target)
        self._summed, self._part_summed = hashlib.sha256(), hashlib.sha256()
        self._number = 0
        self._in_part = 0
        self._part: _Part | None = None

    def _resumed(self, target: UploadTarget) -> _Kept | None:
        """Return an upload that was interrupted, if its job still waits for the parts, or ended with all of them."""
        kept = self._journal.read()
        if kept is None or kept.target.size != target.size:
            return None
        job = self._client.job(kept.transfer.job)
        if job is None:
            return None
        whole = job.state in ENDED_WELL and not job.exit_code and len(kept.parts) == len(kept.transfer.parts)
        return kept if whole or job.state in ACTIVE else None

    def _begun(self, target: UploadTarget) -> _Kept:
        kept = _Kept(target, self._client.begin_upload(target.written or target.partial, target.size))
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
            size = min(transfer.part_bytes, self._kept.target.size - self._number * transfer.part_bytes)
            self._part = _Part(transfer.parts[self._number], size, self._client)
        self._part.write(piece)

    def _end_part(self) -> None:
        digest = self._part_summed.hexdigest()
        if self._part is not None:
            self._kept.parts.append((self._part.finish(), digest))
            self._journal.write(self._kept)
        elif self._kept.parts[self._number][1] != digest:
            forget_upload(self._client, self._kept.target.path)
            raise TryLaterError(
                "changed",
                "the parts of an interrupted upload are of another content, so they are not used",
                subject=self._client.subject,
            )
        self._part, self._part_summed = None, hashlib.sha256()
        self._number, self._in_part = self._number + 1, 0

    def commit(self) -> None:
        """See Upload."""
        if self._in_part:
            self._end_part()
        self._complete()
        wait_for_job(self._client, self._kept.transfer.job, "writes the file")
        try:
            self._finish(self._kept.target.partial, self._summed.hexdigest())
        except IncompleteError:
            self._journal.remove()  # what the service wrote is not what was sent
            raise
        self._journal.remove()

    def _complete(self) -> None:
        """Make one object of the parts; one that was made before is no error."""
        lines = [
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(_quoted(tag))}</ETag></Part>"
            for number, (tag, _) in enumerate(self._kept.parts, 1)
        ]
        body = f"<CompleteMultipartUpload>{''.join(lines)}</CompleteMultipartUpload>".encode()
        client, target = self._client.addresses.client_of(self._kept.transfer.complete)
        response = client.request("POST", target, body=body)
        if response.status == 404:  # NoSuchUpload: it was completed before an interruption
            return
        if response.status >= 300 or b"<Error>" in response.body:
            raise IncompleteError(
                "refused-by-server",
                f"the object store did not complete the file (status {response.status})",
                subject=self._client.subject,
            )

    def abandon(self) -> None:
        """See Upload; the parts stay for the next one."""


def _quoted(tag: str) -> str:
    return tag if tag.startswith('"') else f'"{tag}"'
