"""Define the lines of the digest manifest `.hibali/manifest.jsonl`, and keep many of them sorted."""

from __future__ import annotations

import heapq
import json
import re
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from hibali.documents import line_of_json
from hibali.text import path_fields, path_from_fields
from transfers.model.entry import MOST_NS
from transfers.model.spool import Blocks

NAME = b".hibali/manifest.jsonl"
SHA256 = re.compile(r"[0-9a-f]{64}")
MODE = re.compile(r"[0-7]{1,4}")
# The layout that `record_of` writes for nearly every file; other lines are parsed as JSON.
_PLAIN_LINE = re.compile(
    rb'^\{"key":"([ !#-\[\]-~]{1,4096})","ETag":"([ !#-\[\]-~]{0,256})","size":([0-9]{1,18}),"sha256":"([0-9a-f]{64})",'
    rb'"mtime_ns":(-?[1-9][0-9]{0,27}),"mode":"([0-7]{1,4})"\}\n',
    re.MULTILINE,
)
LINE_LIMIT = 16 * 1024


class Known(NamedTuple):
    """The record of an object with this ETag and size; `mtime_ns` 0, `mode` -1 or `sha256` None: unknown."""

    etag: str
    size: int
    sha256: str | None = None
    mtime_ns: int = 0
    mode: int = -1


def lines_in(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield valid lines, in the format of `line_of`, with their keys; skip all other lines."""
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
    """Parse one of these lines."""
    found = _PLAIN_LINE.fullmatch(line)
    if found is None:
        return known_of(json.loads(line))
    _, etag, size, sha256, mtime_ns, mode = found.groups()
    return Known(etag.decode(), int(size), sha256.decode(), int(mtime_ns), int(mode, 8) & 0o777)


def known_of(record: Any) -> Known:
    """Return the fields of one line. Raise ValueError, KeyError or TypeError if they are invalid."""
    etag, size = record["ETag"], record["size"]
    sha256, mtime_ns, mode = record.get("sha256"), record.get("mtime_ns", 0), record.get("mode")
    if not isinstance(etag, str) or type(size) is not int or type(mtime_ns) is not int:
        raise TypeError("ETag, size or mtime_ns")
    if abs(mtime_ns) >= MOST_NS:
        raise ValueError("mtime_ns")
    if sha256 is not None and not SHA256.fullmatch(sha256):
        raise ValueError("sha256")
    if mode is not None and not MODE.fullmatch(mode):
        raise ValueError("not a mode")
    return Known(etag, size, sha256, mtime_ns, -1 if mode is None else int(mode, 8) & 0o777)


def record_of(path: bytes, known: Known) -> dict[str, Any]:
    """Return one line as a document, without unknown fields."""
    record: dict[str, Any] = {**path_fields(path, "key"), "ETag": known.etag, "size": known.size}
    if known.sha256:
        record["sha256"] = known.sha256
    if known.mtime_ns:
        record["mtime_ns"] = known.mtime_ns
    if known.mode >= 0:
        record["mode"] = f"{known.mode & 0o777:03o}"
    return record


def line_of(path: bytes, known: Known) -> bytes:
    """Return the manifest line of one file; nearly all are written without the encoder, which takes many times as long."""
    text = f'"ETag":"{known.etag}","size":{known.size},"sha256":"{known.sha256}","mtime_ns":{known.mtime_ns}'
    plain = text.encode("utf-8", "surrogatepass"), known.mode & 0o777
    line = b'{"key":"%b",%b,"mode":"%03o"}\n' % (path, *plain)
    if known.mode >= 0 and _PLAIN_LINE.fullmatch(line):
        return line
    return line_of_json(record_of(path, known)).encode("ascii") + b"\n"


_RUN_BYTES = 16 * 1024 * 1024  # bytes that are sorted in memory at once
_OVERHEAD = 200  # bytes of memory for each line beside its content
_BLOCK_BYTES = 64 * 1024
_LENGTHS = struct.Struct(">II")
_DISK = 1  # for Blocks: nothing stays in memory
Keyed = tuple[bytes, bytes]  # a key and its line; an empty line means that the key was removed


class _Run(NamedTuple):
    first: bytes
    last: bytes
    blocks: Blocks


class ManifestLines:
    """Manifest lines, added in any order by any thread, read sorted by key; the last line of a key wins."""

    def __init__(self, in_memory: int = _RUN_BYTES) -> None:
        """Keep about `in_memory` bytes in memory and the rest on disk."""
        self._in_memory = in_memory
        self._now: dict[bytes, bytes] = {}
        self._size = 0
        self._runs: list[_Run] = []
        self._lock = threading.Lock()

    def add(self, key: bytes, line: bytes) -> None:
        """Add a line; it replaces an earlier one with the same key."""
        self.extend([(key, line)])

    def extend(self, lines: Iterable[Keyed]) -> None:
        """Add many lines; other threads wait meanwhile."""
        with self._lock:
            for key, line in lines:
                self._now[key] = line
                self._size += len(key) + len(line) + _OVERHEAD
                if self._size > self._in_memory:
                    self._spill()

    def _spill(self) -> None:
        blocks = Blocks(_DISK)
        keys = sorted(self._now)
        self._runs.append(_Run(keys[0], keys[-1], blocks))
        block = bytearray()
        for key in keys:
            line = self._now[key]
            block += _LENGTHS.pack(len(key), len(line)) + key + line
            if len(block) > _BLOCK_BYTES:
                blocks.append(bytes(block))
                block.clear()
        blocks.append(bytes(block))
        self._now = {}
        self._size = 0

    def __bool__(self) -> bool:
        """Return whether there are any lines."""
        return bool(self._now or self._runs)

    def __iter__(self) -> Iterator[Keyed]:
        """Iterate over the lines, sorted; several times if wanted, but nothing may be added meanwhile."""
        now = sorted(self._now.items())
        runs = [_read(run.blocks) for run in self._runs]
        ends = [(run.first, run.last) for run in self._runs] + [(key, key) for key, _ in now[:1]]
        if all(one[1] < other[0] for one, other in pairwise(ends)):
            return chain(*runs, now)  # such as a manifest that is already sorted
        return newest(*runs, now)

    def close(self) -> None:
        """Free the lines."""
        for run in self._runs:
            run.blocks.close()
        self._runs.clear()
        self._now.clear()
        self._size = 0


def _read(blocks: Blocks) -> Iterator[Keyed]:
    for block in blocks.blocks():
        start = 0
        while start < len(block):
            key_length, line_length = _LENGTHS.unpack_from(block, start)
            middle = start + _LENGTHS.size + key_length
            yield block[start + _LENGTHS.size : middle], block[middle : middle + line_length]
            start = middle + line_length


def newest(*streams: Iterable[Keyed]) -> Iterator[Keyed]:
    """Merge sorted streams; for equal keys, the last stream wins."""
    held: Keyed | None = None
    for keyed in heapq.merge(*streams, key=itemgetter(0)):
        if held is not None and held[0] != keyed[0]:
            yield held
        held = keyed
    if held is not None:
        yield held


def differs(old: ManifestLines, changes: Iterable[Keyed]) -> bool:
    """Return whether any change differs from the old lines."""
    there = Cursor(old)
    return any(there.line(key) != line for key, line in changes)


class Cursor:
    """A reader that finds keys in sorted lines; keys must be requested in ascending order.

    `on_unasked` is called with each key, and its line, that was passed without having been requested.
    """

    def __init__(
        self, lines: Iterable[Keyed], on_unasked: Callable[[bytes, bytes], object] | None = None
    ) -> None:
        self._coming = iter(lines)
        self._on_unasked = on_unasked
        self._asked = True
        self._key: bytes | None = None
        self._line = b""
        self._step()

    def _step(self) -> None:
        if not self._asked and self._on_unasked is not None and self._key is not None:
            self._on_unasked(self._key, self._line)
        self._asked = False
        self._key, self._line = next(self._coming, (None, b""))

    def line(self, key: bytes) -> bytes:
        """Return the line of a key, empty if there is none."""
        while self._key is not None and self._key < key:
            self._step()
        if self._key != key:
            return b""
        self._asked = True
        return self._line

    def end(self) -> None:
        """Pass all remaining lines."""
        while self._key is not None:
            self._step()


def merged(old: ManifestLines, changes: Iterable[Keyed]) -> Iterator[Keyed]:
    """Yield the lines with the changes applied."""
    return (keyed for keyed in newest(old, changes) if keyed[1])
