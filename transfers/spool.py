"""What is too much for memory while it is looked at whole: written once, read again in order as often as needed."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Iterator
from typing import IO, Any, Generic, TypeVar

from transfers.entry import Entry, Kind
from transfers.plan import Action, Verb

_IN_MEMORY = 32 * 1024 * 1024
_READ = 64 * 1024
_LENGTH = struct.Struct(">I")

_Value = TypeVar("_Value")


class Spooled(Generic[_Value]):
    """Values in the order they were added, each as JSON framed by its length."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        """Beyond `in_memory` bytes it goes to disk."""
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115  # closed by close()
        self.count = 0

    def _pack(self, value: _Value) -> list[Any]:
        raise NotImplementedError

    def _unpack(self, fields: list[Any]) -> _Value:
        raise NotImplementedError

    def add(self, value: _Value) -> None:
        """Append one."""
        content = json.dumps(self._pack(value), separators=(",", ":")).encode("ascii")
        self._file.write(_LENGTH.pack(len(content)) + content)
        self.count += 1

    def __len__(self) -> int:
        """How many were added."""
        return self.count

    def __iter__(self) -> Iterator[_Value]:
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
                yield self._unpack(json.loads(held[start + _LENGTH.size : stop]))
                start = stop
            held = held[start:]

    def close(self) -> None:
        """Forget it all."""
        self._file.close()


class Spool(Spooled[Action]):
    """A plan."""

    def _pack(self, value: Action) -> list[Any]:
        target = pack_entry(value.target) if value.target is not None else None
        return [value.verb, value.because, value.implied, pack_entry(value.entry), target]

    def _unpack(self, fields: list[Any]) -> Action:
        verb, because, implied, entry, target = fields
        return Action(
            Verb(verb), unpack_entry(entry), because, unpack_entry(target) if target else None, implied
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
        return pack_entry(value)

    def _unpack(self, fields: list[Any]) -> Entry:
        return unpack_entry(fields)


def pack_entry(entry: Entry) -> list[Any]:
    """An entry as JSON holds it."""
    return [entry.path.decode("latin-1"), *entry[1:9], entry.link.decode("latin-1"), *entry[10:]]


def unpack_entry(fields: list[Any]) -> Entry:
    """The entry that was packed."""
    path, kind, *rest = fields
    rest[7] = rest[7].encode("latin-1")
    return Entry._make([path.encode("latin-1"), Kind(kind), *rest])
