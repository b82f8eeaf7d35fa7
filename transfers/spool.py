"""A plan kept out of memory while it is looked at whole: actions written once, read again in order."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from transfers.entry import Entry, Kind
from transfers.plan import Action, Verb

_IN_MEMORY = 32 * 1024 * 1024
_BYTES = [Entry._fields.index(name) for name in ("path", "link", "attributes", "same_as")]
_LENGTH = struct.Struct(">I")


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

    def blocks(self) -> Iterator[bytes]:
        """Forward; nothing may be added meanwhile, but several may read."""
        position = 0
        while True:
            self._file.seek(position)
            head = self._file.read(_LENGTH.size)
            if not head:
                return
            (length,) = _LENGTH.unpack(head)
            yield self._file.read(length)
            position += length + _LENGTH.size

    def close(self) -> None:
        """Forget it all."""
        self._file.close()


class Spool(Blocks):
    """Actions in the order they were added."""

    def add(self, action: Action) -> None:
        """Append one action."""
        self.append(json.dumps(_to_list(action), separators=(",", ":")).encode("ascii"))

    def __iter__(self) -> Iterator[Action]:
        """Forward; nothing may be added meanwhile."""
        for content in self.blocks():
            yield _from_list(json.loads(content))


def _to_list(action: Action) -> list[Any]:
    target = entry_to_list(action.target) if action.target is not None else None
    return [action.verb, action.because, action.implied, entry_to_list(action.entry), target]


def _from_list(fields: list[Any]) -> Action:
    verb, because, implied, entry, target = fields
    return Action(
        Verb(verb), entry_from_list(entry), because, entry_from_list(target) if target else None, implied
    )


def entry_to_list(entry: Entry) -> list[Any]:
    """An entry as JSON can carry it."""
    return [value.decode("latin-1") if isinstance(value, bytes) else value for value in entry]


def entry_from_list(fields: list[Any]) -> Entry:
    """What `entry_to_list` was given."""
    for position in _BYTES:
        fields[position] = fields[position].encode("latin-1")
    fields[1] = Kind(fields[1])
    return Entry._make(fields)
