"""Write the files of a sharded transfer to its site, and remember on this machine which items each unit has."""

from __future__ import annotations

import gzip
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from hibali.documents import read_json
from hibali.text import printable
from hibali_plugins.nodes.cutting import Unit
from hibali_plugins.nodes.records import item_from, line_of
from transfers.model.units import Item
from transfers.remote.host import RemoteHost, SmallFile

_FILE_BYTES = 4 * 1024 * 1024  # of one file of units, before it is compressed
_LEVEL = 1  # records of units shrink to a seventh, and a higher level saves little more
_READ_BYTES = 32 * 1024 * 1024  # a unit with the attributes of all its files fits
_PLACE = struct.Struct(">QI")  # start and length of a record
# A shard reads both side by side, so that small files, which take the time of their requests, and large ones, which take that of
# their bytes, are on their way together.
_FOLDERS = (b"units", b"pieces")


class UnitSpool:
    """The units of a transfer by number, on disk."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._index: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # by number: where the record is
        self._count = 0

    def __len__(self) -> int:
        """Return the number of units."""
        return self._count

    def add(self, number: int, line: bytes) -> None:
        """Add the record of a unit."""
        content = zlib.compress(line, _LEVEL)
        start = self._file.seek(0, 2)
        self._file.write(content)
        self._index.seek(number * _PLACE.size)
        self._index.write(_PLACE.pack(start, len(content)))
        self._count += 1

    def items(self, number: int) -> list[Item]:
        """Return the items of a unit; none for an unknown one."""
        self._index.seek(number * _PLACE.size)
        found = self._index.read(_PLACE.size)
        start, length = _PLACE.unpack(found) if len(found) == _PLACE.size else (0, 0)
        if not length:
            return []
        self._file.seek(start)
        line = zlib.decompress(self._file.read(length))
        return [item_from(fields) for fields in read_json(line, "unit")["items"]]

    def close(self) -> None:
        """Remove it."""
        self._file.close()
        self._index.close()


class UnitFiles:
    """Writes the units of each shard to files at the site, as they come."""

    def __init__(self, host: RemoteHost, folder: bytes, spool: UnitSpool) -> None:
        self._host = host
        self._folder = folder
        self._spool = spool
        self._held: dict[tuple[bytes, int], list[bytes]] = {}  # by folder and shard
        self._sizes: Counter[tuple[bytes, int]] = Counter()
        self._counts: Counter[tuple[bytes, int]] = Counter()

    @property
    def shards(self) -> Sequence[int]:
        """The shards that have units."""
        return sorted({shard for _, shard in [*self._held, *self._counts]})

    def add(self, shard: int, unit: Unit, record: dict[str, Any]) -> None:
        """Add one unit of a shard."""
        line = line_of(record)
        self._spool.add(unit.number, line)
        place = (b"pieces" if unit.kind in {"piece", "digest"} else b"units", shard)
        self._held.setdefault(place, []).append(line)
        self._sizes[place] += len(line)
        if self._sizes[place] >= _FILE_BYTES:
            self._write(place)

    def _write(self, place: tuple[bytes, int]) -> None:
        self._counts[place] += 1
        folder, shard = place
        content = gzip.compress(b"".join(self._held.pop(place)), _LEVEL)
        self._host.put(b"%b/%b/%d-%d" % (self._folder, folder, shard, self._counts[place]), content)
        self._sizes[place] = 0

    def finish(self, files: Iterable[SmallFile]) -> None:
        """Write what is held, and these files of the transfer."""
        for place in list(self._held):
            self._write(place)
        self._host.put_all([*files])


def read_spool(host: RemoteHost, folder: bytes) -> tuple[UnitSpool, list[int]]:
    """Read the units of an earlier call back; return them, and the numbers of the shards."""
    spool, shards = UnitSpool(), set[int]()
    for below in _FOLDERS:
        for name in host.names(folder + b"/" + below):
            shards.add(int(name.partition(b"-")[0]))
            content = host.get(b"%b/%b/%b" % (folder, below, name), maximum=_READ_BYTES) or b""
            for line in gzip.decompress(content).splitlines(keepends=True):
                spool.add(int(read_json(line, printable(name))["unit"]), line)
    return spool, sorted(shards)


def complete_lines(host: RemoteHost, path: bytes) -> Iterator[bytes]:
    """Yield the lines of a file at the site that end in a newline."""
    reading = JournalReading(path)
    while content := reading.read(host):
        yield from content.splitlines(keepends=True)


class JournalReading:
    """Reads a file that grows, in pieces of whole lines."""

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._offset = 0

    def read(self, host: RemoteHost) -> bytes:
        """Return the next complete lines, b"" if there are none yet."""
        content = host.get(self._path, maximum=_READ_BYTES, offset=self._offset) or b""
        content = content[: content.rfind(b"\n") + 1]
        self._offset += len(content)
        return content


class Journals:
    """Reads the journals of all shards and attempts, as far as they are written."""

    def __init__(self, folder: bytes) -> None:
        self._folder = folder + b"/journals"
        self._readings: dict[bytes, JournalReading] = {}

    def read(self, host: RemoteHost, on_lines: Callable[[int, bytes], None]) -> None:
        """Call `on_lines` with the number of a shard and its next lines."""
        for name in host.names(self._folder):
            shard = name.partition(b"-")[0]
            if not shard.isdigit():
                continue
            reading = self._readings.setdefault(name, JournalReading(self._folder + b"/" + name))
            while content := reading.read(host):
                on_lines(int(shard), content)
