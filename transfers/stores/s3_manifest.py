"""What is known of objects beside their bytes: the digest manifest `.hibali/manifest.jsonl` and user metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hibali.strict_json import line_of_json
from hibali.text import path_fields, path_from_fields
from transfers.entry import MOST_NS

NAME = b".hibali/manifest.jsonl"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MODE = re.compile(r"[0-7]{1,4}")
# A line as `record_of` writes it of nearly every file; any other is read as JSON.
_PLAIN_LINE = re.compile(
    rb'^\{"key":"([ !#-\[\]-~]{1,4096})","ETag":"([ !#-\[\]-~]{0,256})","size":([0-9]{1,18}),"sha256":"([0-9a-f]{64})",'
    rb'"mtime_ns":(-?[1-9][0-9]{0,27}),"mode":"([0-7]{1,4})"\}\n',
    re.MULTILINE,
)
LINE_LIMIT = 16 * 1024
_NS = 1_000_000_000
_STAMP = re.compile(r"-?[0-9]{1,28}")  # as far from 1970 as a filesystem can tell (MOST_NS)
_SECONDS = re.compile(r"(-?)([0-9]{1,19})(?:\.([0-9]{1,9}))?")


class Known(NamedTuple):
    """What is on record of an object of this ETag and size. `mtime_ns` 0, `mode` -1 and `sha256` None: not recorded."""

    etag: str
    size: int
    sha256: str | None = None
    mtime_ns: int = 0
    mode: int = -1


def lines_in(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The lines that make sense, as `line_of` writes them, by their keys. Nobody vouches for the others, so they are passed over."""
    start = 0
    for found in _PLAIN_LINE.finditer(content):
        if found.start() > start:
            yield from _other_lines(content[start : found.start()])
        start = found.end()
        yield found.group(1), found.group()
    yield from _other_lines(content[start:])


def _other_lines(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    for line in content.splitlines():
        if len(line) > LINE_LIMIT:
            continue
        try:
            record = json.loads(line.decode())
            known = known_of(record)
            key = path_from_fields(record, "key")
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        yield key, line_of(key, known)


def known_in(line: bytes) -> Known:
    """What one of these lines says."""
    found = _PLAIN_LINE.fullmatch(line)
    if found is None:
        return known_of(json.loads(line))
    _, etag, size, sha256, mtime_ns, mode = found.groups()
    return Known(etag.decode(), int(size), sha256.decode(), int(mtime_ns), int(mode, 8) & 0o777)


def known_of(record: Any) -> Known:
    """The fields of one line; raises ValueError, KeyError or TypeError where they are not what they should be."""
    etag, size = record["ETag"], record["size"]
    sha256, mtime_ns, mode = record.get("sha256"), record.get("mtime_ns", 0), record.get("mode")
    if not isinstance(etag, str) or type(size) is not int or type(mtime_ns) is not int:
        raise TypeError("ETag, size or mtime_ns")
    if abs(mtime_ns) >= MOST_NS:
        raise ValueError("mtime_ns")
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise ValueError("sha256")
    if mode is not None and not _MODE.fullmatch(mode):
        raise ValueError("mode")
    return Known(etag, size, sha256, mtime_ns, -1 if mode is None else int(mode, 8) & 0o777)


def record_of(path: bytes, known: Known) -> dict[str, Any]:
    """One line; what is not known is left out."""
    record: dict[str, Any] = {**path_fields(path, "key"), "ETag": known.etag, "size": known.size}
    if known.sha256:
        record["sha256"] = known.sha256
    if known.mtime_ns:
        record["mtime_ns"] = known.mtime_ns
    if known.mode >= 0:
        record["mode"] = f"{known.mode & 0o777:03o}"
    return record


def line_of(path: bytes, known: Known) -> bytes:
    """The line of one file, as it stands in a manifest."""
    return line_of_json(record_of(path, known)).encode("ascii") + b"\n"


def to_metadata(known: Known) -> dict[str, str]:
    """User metadata of an object (no underscores: proxies drop such headers)."""
    found = {"mtime-ns": str(known.mtime_ns)} if known.mtime_ns else {}
    if known.sha256:
        found["sha256"] = known.sha256
    if known.mode >= 0:
        found["mode"] = f"{known.mode & 0o777:03o}"
    return found


def from_metadata(headers: Mapping[str, str], etag: str, size: int) -> Known:
    """What the user metadata of an object says; also the `mtime` that rclone writes (seconds with a fraction)."""
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
        sha256 if _SHA256.fullmatch(sha256) else None,
        mtime_ns,
        int(mode, 8) & 0o777 if _MODE.fullmatch(mode) else -1,
    )
