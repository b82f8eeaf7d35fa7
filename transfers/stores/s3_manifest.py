"""What is known of objects beside their bytes: the digest manifest `.hibali/manifest.jsonl` and user metadata."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hibali.strict_json import line_of_json
from hibali.text import path_fields, path_from_fields

NAME = b".hibali/manifest.jsonl"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MODE = re.compile(r"[0-7]{1,4}")
# A line as `record_of` writes it of nearly every file; any other is read as JSON.
_PLAIN_LINE = re.compile(
    rb'^\{"key":"([ !#-\[\]-~]{1,4096})","ETag":"([ !#-\[\]-~]{0,256})","size":([0-9]{1,18}),"sha256":"([0-9a-f]{64})",'
    rb'"mtime_ns":(-?[1-9][0-9]{0,18}),"mode":"([0-7]{1,4})"\}\n',
    re.MULTILINE,
)
_LINE_LIMIT = 16 * 1024
_NS = 1_000_000_000


class Known(NamedTuple):
    """What is on record of an object of this ETag and size. `mtime_ns` 0, `mode` -1 and `sha256` None: not recorded."""

    etag: str
    size: int
    sha256: str | None = None
    mtime_ns: int = 0
    mode: int = -1


@dataclass(slots=True)
class Manifest:
    """The lines of one manifest object, by key relative to its folder; `etag` of the object, None where there is none."""

    lines: dict[bytes, Known] = field(default_factory=dict)
    etag: str | None = None

    def find(self, path: bytes, etag: str, size: int) -> Known | None:
        """The line of this key, which counts only while ETag and size match."""
        known = self.lines.get(path)
        return known if known is not None and known.etag == etag and known.size == size else None


def read_lines(content: bytes) -> dict[bytes, Known]:
    """The lines that make sense; a later one of a key wins. Nobody vouches for the others, so they are passed over."""
    lines: dict[bytes, Known] = {}
    start = 0
    for found in _PLAIN_LINE.finditer(content):
        if found.start() > start:
            _read_others(content[start : found.start()], lines)
        start = found.end()
        key, etag, size, sha256, mtime_ns, mode = found.groups()
        lines[key] = Known(etag.decode(), int(size), sha256.decode(), int(mtime_ns), int(mode, 8) & 0o777)
    _read_others(content[start:], lines)
    return lines


def _read_others(content: bytes, lines: dict[bytes, Known]) -> None:
    for line in content.splitlines():
        if len(line) > _LINE_LIMIT:
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            record = json.loads(line.decode())
            lines[path_from_fields(record, "key")] = known_of(record)


def known_of(record: Any) -> Known:
    """The fields of one line; raises ValueError, KeyError or TypeError where they are not what they should be."""
    etag, size = record["ETag"], record["size"]
    sha256, mtime_ns, mode = record.get("sha256"), record.get("mtime_ns", 0), record.get("mode")
    if not isinstance(etag, str) or type(size) is not int or type(mtime_ns) is not int:
        raise TypeError("ETag, size or mtime_ns")
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


def write_lines(lines: Mapping[bytes, Known]) -> bytes:
    """The manifest's content, in canonical order."""
    return b"".join(
        line_of_json(record_of(path, lines[path])).encode("ascii") + b"\n" for path in sorted(lines)
    )


def merge(
    old: Mapping[bytes, Known], landed: Mapping[bytes, Known], gone: Iterable[bytes]
) -> dict[bytes, Known]:
    """The lines after a call: what stands already, without what is gone, with what landed."""
    removed = set(gone) - landed.keys()
    kept = {path: known for path, known in old.items() if path not in removed}
    return {**kept, **landed}


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
    mtime_ns = int(stamp) if re.fullmatch(r"-?[0-9]{1,20}", stamp) else 0
    seconds = re.fullmatch(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?", headers.get("x-amz-meta-mtime", ""))
    if not mtime_ns and seconds:
        mtime_ns = int(seconds.group(1)) * _NS + int((seconds.group(2) or "").ljust(9, "0"))
    return Known(
        etag,
        size,
        sha256 if _SHA256.fullmatch(sha256) else None,
        mtime_ns,
        int(mode, 8) & 0o777 if _MODE.fullmatch(mode) else -1,
    )


def enclosing(path: bytes) -> Iterator[bytes]:
    """The folders around a path, nearest first, the root (b"") last."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path
    yield b""
