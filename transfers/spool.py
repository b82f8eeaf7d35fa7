"""Keep plans and listings on disk that are too large for memory."""

from __future__ import annotations

import heapq
import json
import struct
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import IO, Any, Generic, TypeVar

from transfers.entry import Entry, Kind
from transfers.plan import Action, Verb

_IN_MEMORY = 32 * 1024 * 1024
_BYTES = [Entry._fields.index(name) for name in ("path", "link", "attributes", "same_as")]
_READ = 64 * 1024
_LENGTH = struct.Struct(">I")

_Value = TypeVar("_Value")


class Blocks:
    """Pieces of bytes in the order they were added; each is framed by its length."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        """Beyond `in_memory` bytes they go to disk."""
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115  # closed by close()
        self.count = 0

    def append(self, content: bytes) -> None:
        """Add one."""
        self._file.write(_LENGTH.pack(len(content)) + content)
        self.count += 1

    def __len__(self) -> int:
        """How many were added."""
        return self.count

    def blocks(self) -> Iterator[bytes]:
        """Forward, by any number of readers in turn; nothing may be added meanwhile."""
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
        """Forget it all."""
        self._file.close()


class Spooled(Blocks, ABC, Generic[_Value]):
    """Values in the order they were added, each as JSON."""

    @abstractmethod
    def _pack(self, value: _Value) -> list[Any]:
        """As JSON can carry it."""

    @abstractmethod
    def _unpack(self, fields: list[Any]) -> _Value:
        """What `_pack` was given."""

    def add(self, value: _Value) -> None:
        """Append one."""
        self.append(json.dumps(self._pack(value), separators=(",", ":")).encode("ascii"))

    def __iter__(self) -> Iterator[_Value]:
        """Forward, by any number of readers in turn; nothing may be added meanwhile."""
        for content in self.blocks():
            yield self._unpack(json.loads(content))


def sort_on_disk(
    values: Iterable[_Value], key: Callable[[_Value], Any], make: Callable[[], Spooled[_Value]], most: int
) -> Iterator[_Value]:
    """The same in the order of `key`, with so many in memory at once: sorted runs that `make` keeps, then merged."""
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


class Spool(Spooled[Action]):
    """A plan."""

    def _pack(self, value: Action) -> list[Any]:
        target = entry_to_list(value.target) if value.target is not None else None
        return [value.verb, value.because, value.implied, entry_to_list(value.entry), target]

    def _unpack(self, fields: list[Any]) -> Action:
        verb, because, implied, entry, target = fields
        return Action(
            Verb(verb), entry_from_list(entry), because, entry_from_list(target) if target else None, implied
        )


class EntrySpool(Spooled[Entry]):
    """A listing; `bytes` is the size of all that was added."""

    def __init__(self, in_memory: int = _IN_MEMORY // 4) -> None:
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


def entry_to_list(entry: Entry) -> list[Any]:
    """An entry as JSON can carry it."""
    return [value.decode("latin-1") if isinstance(value, bytes) else value for value in entry]


def entry_from_list(fields: list[Any]) -> Entry:
    """What `entry_to_list` was given."""
    for position in _BYTES:
        fields[position] = fields[position].encode("latin-1")
    fields[1] = Kind(fields[1])
    return Entry._make(fields)
