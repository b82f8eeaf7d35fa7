"""Keep lists of any length in order: in memory up to a size, then in a temporary file."""

from __future__ import annotations

import heapq
import json
import struct
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import IO, Any, Generic, TypeVar

from transfers.model.entry import Entry, Kind
from transfers.model.units import ListingIncompleteError

_IN_MEMORY = 1024 * 1024
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode
_KINDS = {kind.value: kind for kind in Kind}  # many times faster than the class
_READ = 64 * 1024
_LENGTH = struct.Struct(">I")
_Value = TypeVar("_Value")


class Blocks:
    """Byte strings in the order they were added, each with its length before it."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        """Create it; more than `in_memory` bytes are written to disk."""
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115  # closed by close()
        self.count = 0

    def append(self, content: bytes) -> None:
        """Add one byte string."""
        self._file.write(_LENGTH.pack(len(content)) + content)
        self.count += 1

    def __len__(self) -> int:
        """Return their number."""
        return self.count

    def blocks(self) -> Iterator[bytes]:
        """Yield all of them; may be called again, but nothing may be added during a read."""
        position, held = 0, b""
        while True:
            self._file.seek(position)
            more = self._file.read(_READ)
            if not more:
                return
            position += len(more)
            held += more
            start = 0
            while len(held) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(held, start)
                stop = start + _LENGTH.size + length
                if stop > len(held):
                    break
                yield held[start + _LENGTH.size : stop]
                start = stop
            held = held[start:]

    def close(self) -> None:
        """Delete them."""
        self._file.close()


class Spooled(Blocks, ABC, Generic[_Value]):
    """Values in the order they were added, stored as JSON."""

    @abstractmethod
    def _pack(self, value: _Value) -> list[Any]:
        """Return the value as a list for JSON."""

    @abstractmethod
    def _unpack(self, fields: list[Any]) -> _Value:
        """Return the value that `_pack` converted."""

    def add(self, value: _Value) -> None:
        """Append one value."""
        self.append(_encode(self._pack(value)).encode("ascii"))

    def __iter__(self) -> Iterator[_Value]:
        """Yield all of them; may be called again, but nothing may be added during a read."""
        for content in self.blocks():
            yield self._unpack(decode_list(content))


def sort_on_disk(
    values: Iterable[_Value], key: Callable[[_Value], Any], make: Callable[[], Spooled[_Value]], most: int
) -> Iterator[_Value]:
    """Sort by `key`: runs of limited size are sorted in memory, kept in spools from `make`, and merged."""
    coming = iter(values)
    runs: list[Spooled[_Value]] = []
    try:
        while some := sorted(islice(coming, most), key=key):
            run = make()
            runs.append(run)
            for value in some:
                run.add(value)
        yield from heapq.merge(*runs, key=key)
    finally:
        for run in runs:
            run.close()


class EntrySpool(Spooled[Entry]):
    """A listing; `bytes` is the total size."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        super().__init__(in_memory)
        self.bytes = 0

    def add(self, value: Entry) -> None:
        """See Spooled."""
        super().add(value)
        self.bytes += value.size

    def _pack(self, value: Entry) -> list[Any]:
        return entry_to_list(value)

    def _unpack(self, fields: list[Any]) -> Entry:
        return entry_from_list(fields)


def decode_list(content: bytes) -> list[Any]:
    """Return the list that a spool encoded."""
    found: list[Any] = _decode(content.decode("ascii"))[0]
    return found


def entry_to_list(entry: Entry) -> list[Any]:
    """Return an entry as a list for JSON."""
    path, kind, *status, link, etag, digest, offline, allocated, attributes, same_as, renamed_from = entry
    names = (
        path.decode("latin-1"),
        link.decode("latin-1"),
        attributes.decode("latin-1"),
        same_as.decode("latin-1"),
        renamed_from.decode("latin-1"),
    )
    return [*names, kind, *status, etag, digest, offline, allocated]


def entry_from_list(fields: list[Any]) -> Entry:
    """Return the entry that `entry_to_list` converted."""
    path, link, attributes, same_as, renamed_from, kind, *status, etag, digest, offline, allocated = fields
    first = path.encode("latin-1"), _KINDS[kind], *status, link.encode("latin-1")
    more = attributes.encode("latin-1"), same_as.encode("latin-1"), renamed_from.encode("latin-1")
    return Entry._make((*first, etag, digest, offline, allocated, *more))


_RUN = 100_000  # entries of a listing that are sorted in memory at a time


_RUN_BYTES = 64 * 1024  # bytes of each sorted run that stay in memory


def sort_listing(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Sort a listing canonically; the error at its end, which says what it lacks, is raised at the end again."""
    problems: list[ListingIncompleteError] = []

    def listed() -> Iterator[Entry]:
        try:
            yield from entries
        except ListingIncompleteError as problem:
            problems.append(problem)

    yield from sort_on_disk(listed(), attrgetter("order"), lambda: EntrySpool(_RUN_BYTES), _RUN)
    for problem in problems:
        raise problem
