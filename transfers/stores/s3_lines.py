"""Lines of a manifest by their keys, in canonical order, within bounded memory: what is too much goes to disk."""

from __future__ import annotations

import heapq
import struct
import threading
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from operator import itemgetter
from typing import NamedTuple

from transfers.spool import Blocks
from transfers.stores.s3_manifest import Known, known_in

_RUN_BYTES = 16 * 1024 * 1024  # so much is sorted in memory at once
_OVERHEAD = 200  # bytes that a line costs beside its own
_BLOCK_BYTES = 64 * 1024
_LENGTHS = struct.Struct(">II")
_DISK = 1  # for Blocks: nothing stays in memory

Keyed = tuple[bytes, bytes]  # a key and its line; no line at all says that what had this key is gone


class _Run(NamedTuple):
    first: bytes
    last: bytes
    blocks: Blocks


class Lines:
    """Added in any order by any thread, read in the order of the keys; of one key the line that came last."""

    def __init__(self, in_memory: int = _RUN_BYTES) -> None:
        """Beyond about `in_memory` bytes they go to disk."""
        self._in_memory = in_memory
        self._now: dict[bytes, bytes] = {}
        self._size = 0
        self._runs: list[_Run] = []
        self._lock = threading.Lock()

    def add(self, key: bytes, line: bytes) -> None:
        """Take one in the place of what had its key."""
        self.extend([(key, line)])

    def extend(self, lines: Iterable[Keyed]) -> None:
        """Take many; other threads wait meanwhile."""
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
        """Whether there are any."""
        return bool(self._now or self._runs)

    def __iter__(self) -> Iterator[Keyed]:
        """By any number of readers in turn; nothing may be added meanwhile."""
        now = sorted(self._now.items())
        runs = [_read(run.blocks) for run in self._runs]
        ends = [(run.first, run.last) for run in self._runs] + [(key, key) for key, _ in now[:1]]
        if all(one[1] < other[0] for one, other in pairwise(ends)):
            return chain(*runs, now)  # as of a manifest that is in order itself
        return newest(*runs, now)

    def close(self) -> None:
        """Forget them all."""
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
    """Several that are each in order, as one; of one key the line of the last stream that has it."""
    held: Keyed | None = None
    for keyed in heapq.merge(*streams, key=itemgetter(0)):
        if held is not None and held[0] != keyed[0]:
            yield held
        held = keyed
    if held is not None:
        yield held


def differs(old: Lines, changes: Iterable[Keyed]) -> bool:
    """Whether any of the changes says something else than the old lines do."""
    there = Cursor(old)
    return any(there.line(key) != line for key, line in changes)


class Cursor:
    """Looks keys up in sorted lines, each one at or behind the one before."""

    def __init__(self, lines: Iterable[Keyed]) -> None:
        self._coming = iter(lines)
        self._key: bytes | None = None
        self._line = b""
        self._step()

    def _step(self) -> None:
        self._key, self._line = next(self._coming, (None, b""))

    def line(self, key: bytes) -> bytes:
        """The line of that key; nothing where there is none."""
        while self._key is not None and self._key < key:
            self._step()
        return self._line if self._key == key else b""

    def find(self, key: bytes, etag: str, size: int) -> Known | None:
        """What the line of that key says, which counts only while ETag and size match."""
        line = self.line(key)
        known = known_in(line) if line else None
        return known if known is not None and (known.etag, known.size) == (etag, size) else None
