"""Read and write the digest manifest of a bucket in pieces, and the user metadata of objects."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping

from hibali.errors import HibaliError, IncompleteError
from hibali.http.client import Response
from transfers.model.entry import MOST_NS
from transfers.stores.s3.multipart import BegunUpload, Upload, Uploads, abort, begin
from transfers.stores.s3.requests import Requests
from transfers.stores.server.manifest import LINE_LIMIT, MODE, SHA256, Keyed, Known, ManifestLines, lines_in

_NS = 1_000_000_000
_STAMP = re.compile(r"-?[0-9]{1,28}")  # at most MOST_NS from 1970
_SECONDS = re.compile(r"(-?)([0-9]{1,19})(?:\.([0-9]{1,9}))?")


def to_metadata(known: Known) -> dict[str, str]:
    """Return an object's user metadata (no underscores: proxies drop such headers)."""
    found = {"mtime-ns": str(known.mtime_ns)} if known.mtime_ns else {}
    if known.sha256:
        found["sha256"] = known.sha256
    if known.mode >= 0:
        found["mode"] = f"{known.mode & 0o777:03o}"
    return found


def from_metadata(headers: Mapping[str, str], etag: str, size: int) -> Known:
    """Parse an object's user metadata, including rclone's `mtime` (seconds with a fraction)."""
    sha256 = headers.get("x-amz-meta-sha256", "")
    mode = headers.get("x-amz-meta-mode", "")
    stamp = headers.get("x-amz-meta-mtime-ns", "")
    mtime_ns = int(stamp) if _STAMP.fullmatch(stamp) else 0
    seconds = _SECONDS.fullmatch(headers.get("x-amz-meta-mtime", ""))
    if not mtime_ns and seconds:
        mtime_ns = int(seconds[2]) * _NS + int((seconds[3] or "").ljust(9, "0"))
        mtime_ns = -mtime_ns if seconds[1] else mtime_ns
    mtime_ns = mtime_ns if abs(mtime_ns) < MOST_NS else 0
    return Known(
        etag,
        size,
        sha256 if SHA256.fullmatch(sha256) else None,
        mtime_ns,
        int(mode, 8) & 0o777 if MODE.fullmatch(mode) else -1,
    )


_PIECE_BYTES = 8 * 1024 * 1024
_ATTEMPTS = 5
_NONE = frozenset({403, 404})
_CHANGED = frozenset({404, 412})
_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+)")
_SOURCE = {"manifest": True}  # distinguishes a manifest upload from a user's file


class _ChangedError(Exception):
    """The object changed while it was read."""


def read_manifest(requests: Requests, key: bytes) -> tuple[ManifestLines, str | None]:
    """Return the manifest's lines (the caller closes them) and ETag; None if missing or changing."""
    for _ in range(_ATTEMPTS):
        lines = ManifestLines()
        try:
            return lines, _read_into(lines, requests, key)
        except _ChangedError:
            lines.close()
        except BaseException:
            lines.close()
            raise
    return ManifestLines(), None


def _read_into(lines: ManifestLines, requests: Requests, key: bytes) -> str | None:
    offset, held, etag = 0, b"", ""
    while True:
        response = _piece(requests, key, offset, etag)
        if response.status in _NONE:
            return None
        etag = response.etag
        content_range = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if (content_range is None and offset) or (
            content_range is not None and int(content_range.group(1)) != offset
        ):
            raise _ChangedError
        offset += len(response.body)
        last = content_range is None or offset >= int(content_range.group(2)) or not response.body
        held += response.body
        stop = len(held) if last else held.rfind(b"\n") + 1
        lines.extend(lines_in(held[:stop]))
        if last:
            return etag
        held = held[stop:][: LINE_LIMIT + 1]  # no valid line is longer


def _piece(requests: Requests, key: bytes, offset: int, etag: str) -> Response:
    headers = {"Range": f"bytes={offset}-{offset + _PIECE_BYTES - 1}"}
    if not offset:
        response = requests.request("GET", key, headers=headers, accept={*_NONE, 416})
        # an empty object has no ranges
        return response if response.status != 416 else requests.request("GET", key, accept=_NONE)
    response = requests.request("GET", key, headers={**headers, "If-Match": f'"{etag}"'}, accept=_CHANGED)
    if response.status >= 300 or response.etag != etag:
        raise _ChangedError
    return response


def write_manifest(
    requests: Requests, uploads: Uploads, key: bytes, lines: Iterable[Keyed], etag: str | None
) -> bool:
    """Replace the manifest with that ETag (None: create it); without lines, remove it.

    Returns False if another client changed it. The old one stays until the new one is complete.
    """
    pieces = _pieces(lines)
    first = next(pieces, b"")
    if not first:
        requests.request("DELETE", key, accept=(404,))
        return True
    second = next(pieces, None)
    if second is not None:
        return _write_parts(requests, uploads, key, _chain(first, second, pieces), etag)
    response = requests.request("PUT", key, body=first, headers=_condition(etag), accept=(404, 409, 412, 501))
    if response.status == 501 or (response.status == 412 and _is_current(requests, key, etag)):
        # the condition is unsupported, or compares something other than ETags (Ceph)
        response = requests.request("PUT", key, body=first)
    return response.status < 300


def _pieces(lines: Iterable[Keyed]) -> Iterator[bytes]:
    piece = bytearray()
    for _, line in lines:
        piece += line
        if len(piece) >= _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def _chain(first: bytes, second: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield second
    yield from rest


def _write_parts(
    requests: Requests, uploads: Uploads, key: bytes, pieces: Iterator[bytes], etag: str | None
) -> bool:
    for upload_left in uploads.of_key(key):
        if upload_left.left:
            abort(requests, key, upload_left.identifier)
            uploads.end(upload_left)
    begun = BegunUpload(requests.bucket, key, begin(requests, key, {}), _SOURCE)
    uploads.begin(begun)
    try:
        upload = Upload(requests, key, begun.identifier, checksum=False, verifies_hashes=True, existing={})
        for number, piece in enumerate(pieces, 1):
            upload.send(number, piece)
        _complete(requests, upload, key, etag)
    except BaseException as problem:
        with contextlib.suppress(HibaliError):
            abort(requests, key, begun.identifier)
            uploads.end(begun)
        if isinstance(problem, IncompleteError) and problem.code == "source-changed":
            return False
        raise
    uploads.end(begun)
    return True


def _complete(requests: Requests, upload: Upload, key: bytes, etag: str | None) -> None:
    """Check the ETag, then complete; some servers support no conditions, here (Ceph) or at all."""
    if not _is_current(requests, key, etag):
        raise IncompleteError("source-changed", "the existing manifest changed", subject=requests.subject)
    try:
        upload.complete(_condition(etag))
    except IncompleteError as problem:
        unknown = problem.code == "not-supported"
        if not (unknown or (problem.code == "source-changed" and _is_current(requests, key, etag))):
            raise
        upload.complete()


def _condition(etag: str | None) -> dict[str, str]:
    return {"If-None-Match": "*"} if etag is None else {"If-Match": f'"{etag}"'}


def _is_current(requests: Requests, key: bytes, etag: str | None) -> bool:
    """Return whether the object with that ETag exists; for None, whether there is no object."""
    head = requests.request("HEAD", key, accept=_NONE)
    return etag is None if head.status >= 300 else head.etag == etag
