"""The manifest as an object: read in ranges, written in parts, so that no more than a piece of it is held."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

from hibali.errors import HibaliError, IncompleteError
from transfers.stores.s3_lines import Keyed, Lines, newest
from transfers.stores.s3_manifest import LINE_LIMIT, lines_in
from transfers.stores.s3_multipart import Upload, abort, begin
from transfers.stores.s3_requests import Answer, Requests
from transfers.stores.s3_uploads import Begun, Uploads

_PIECE_BYTES = 8 * 1024 * 1024
_ROUNDS = 5
_NONE = frozenset({403, 404})
_CHANGED = frozenset({404, 412})
_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+)")
_SOURCE = {"manifest": True}  # tells an upload of ours from one of a user's file


class _ChangedError(Exception):
    """It is not the object any more whose first pieces were read."""


def read_manifest(requests: Requests, key: bytes) -> tuple[Lines, str | None]:
    """Its lines, which the caller closes, and its ETag; None where there is no such object, or none that stays the same."""
    for _ in range(_ROUNDS):
        lines = Lines()
        try:
            return lines, _read_into(lines, requests, key)
        except _ChangedError:
            lines.close()
        except BaseException:
            lines.close()
            raise
    return Lines(), None


def _read_into(lines: Lines, requests: Requests, key: bytes) -> str | None:
    offset, held, etag = 0, b"", ""
    while True:
        answer = _piece(requests, key, offset, etag)
        if answer.status in _NONE:
            return None
        etag = answer.etag
        told = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        if (told is None and offset) or (told is not None and int(told.group(1)) != offset):
            raise _ChangedError
        offset += len(answer.body)
        last = told is None or offset >= int(told.group(2)) or not answer.body
        held += answer.body
        stop = len(held) if last else held.rfind(b"\n") + 1
        lines.extend(lines_in(held[:stop]))
        if last:
            return etag
        held = held[stop:][: LINE_LIMIT + 1]  # nobody's line is longer


def _piece(requests: Requests, key: bytes, offset: int, etag: str) -> Answer:
    headers = {"Range": f"bytes={offset}-{offset + _PIECE_BYTES - 1}"}
    if not offset:
        answer = requests.ask("GET", key, headers=headers, accept={*_NONE, 416})
        # of an empty object no range can be had
        return answer if answer.status != 416 else requests.ask("GET", key, accept=_NONE)
    answer = requests.ask("GET", key, headers={**headers, "If-Match": f'"{etag}"'}, accept=_CHANGED)
    if answer.status >= 300 or answer.etag != etag:
        raise _ChangedError
    return answer


def write_manifest(
    requests: Requests, uploads: Uploads, key: bytes, lines: Iterable[Keyed], etag: str | None
) -> bool:
    """Replace the one with that ETag, or where None make one; with no lines remove it. False where others changed it.

    Until all of it has arrived, the old one stands.
    """
    pieces = _pieces(lines)
    first = next(pieces, b"")
    if not first:
        requests.ask("DELETE", key, accept=(404,))
        return True
    second = next(pieces, None)
    if second is not None:
        return _write_parts(requests, uploads, key, _chain(first, second, pieces), etag)
    answer = requests.ask("PUT", key, body=first, headers=_condition(etag), accept=(404, 409, 412, 501))
    if answer.status == 501 or (answer.status == 412 and _stands(requests, key, etag)):
        # it knows no such condition, or compares something else than ETags (Ceph)
        answer = requests.ask("PUT", key, body=first)
    return answer.status < 300


def merged(old: Lines, changes: Iterable[Keyed]) -> Iterator[Keyed]:
    """The lines after the changes."""
    return (keyed for keyed in newest(old, changes) if keyed[1])


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
    for left in uploads.of_key(key):
        if left.left:
            abort(requests, key, left.identifier)
            uploads.end(left)
    begun = Begun(requests.bucket, key, begin(requests, key, {}), _SOURCE)
    uploads.begin(begun)
    try:
        upload = Upload(requests, key, begun.identifier, checksum=False, proves=True, standing={})
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
    """Looked at once more before, for some servers know no conditions here (Ceph) or none at all."""
    if not _stands(requests, key, etag):
        raise IncompleteError("source-changed", "another one stands there", about=requests.about)
    try:
        upload.complete(_condition(etag))
    except IncompleteError as problem:
        unknown = problem.code == "not-supported"
        if not (unknown or (problem.code == "source-changed" and _stands(requests, key, etag))):
            raise
        upload.complete()


def _condition(etag: str | None) -> dict[str, str]:
    return {"If-None-Match": "*"} if etag is None else {"If-Match": f'"{etag}"'}


def _stands(requests: Requests, key: bytes, etag: str | None) -> bool:
    """Whether the very object of that ETag stands there; with None, whether there is none."""
    head = requests.ask("HEAD", key, accept=_NONE)
    return etag is None if head.status >= 300 else head.etag == etag
