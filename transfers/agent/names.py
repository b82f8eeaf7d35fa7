"""Read the names in a folder in byte order."""

import os
import zlib
from bisect import bisect_left, bisect_right
from itertools import islice
from typing import Any, Iterator, List

from transfers.agent import protocol
from transfers.agent.progress import step

_OWN = protocol.OWN_FOLDER + b"/"

_RUN = 16 * 1024  # names sorted as objects, which take twenty times the memory of compressed ones
_PIECE = 768  # compressed bytes of each run whose names, a few hundred, are objects while the runs are merged
_WINDOW_BITS = 12  # 4 KiB for each run that is merged: similar names are close to each other


class Names(object):
    """All names in a folder, folders with a trailing slash, read at once; raises OSError."""

    def __init__(self, descriptor: int, few: bool = False) -> None:  # noqa: FBT001, FBT002  # Python 3.6 style
        """With `few`, raise OverflowError for a folder with very many names."""
        self.has_own_folder = False  # the one of hibali
        self._packed: List[bytes] = []
        self._names: List[bytes] = []
        with _scan(descriptor) as entries:
            while True:
                step()
                found = "\0".join([_name(entry) for entry in islice(entries, _RUN)])
                if not found:
                    break
                if self._names and few:
                    raise OverflowError
                if self._names:
                    self._packed.append(_pack(self._names))
                # encoded together, because a call for each takes as long as reading the folder
                self._names = os.fsencode(found).split(b"\0")
                self._names.sort()
                position = bisect_left(self._names, _OWN)
                self.has_own_folder |= self._names[position : position + 1] == [_OWN]

    def __iter__(self) -> Iterator[bytes]:
        """Iterate in byte order."""
        if not self._packed:
            return iter(self._names)
        return _merged([*map(_unpack, self._packed), iter([self._names])])


def _scan(descriptor: int) -> Any:
    """Scan a folder by its /proc path (proc(5)): Python 3.6 accepts no descriptor here."""
    try:
        return os.scandir(descriptor)
    except TypeError:
        return os.scandir("/proc/self/fd/{}/.".format(descriptor))


def _name(entry: "os.DirEntry[str]") -> str:
    try:
        return entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name
    except OSError:
        return entry.name  # the kind is determined later, when the name is visited


def _pack(names: List[bytes]) -> bytes:
    compress = zlib.compressobj(1, zlib.DEFLATED, _WINDOW_BITS)
    return compress.compress(b"\0".join(names) + b"\0") + compress.flush()


def _unpack(packed: bytes) -> Iterator[List[bytes]]:
    """Yield the names of a packed run in chunks."""
    decompress, rest = zlib.decompressobj(_WINDOW_BITS).decompress, b""
    for position in range(0, len(packed), _PIECE):
        names = (rest + decompress(packed[position : position + _PIECE])).split(b"\0")
        rest = names.pop()
        if names:
            yield names


def _merged(runs: List[Iterator[List[bytes]]]) -> Iterator[bytes]:
    """Merge sorted runs: up to the lowest of the last names in their chunks, all names are known."""
    chunks = [(next(run), run) for run in runs]
    while chunks:
        limit = min(names[-1] for names, _ in chunks)
        ready: List[bytes] = []
        left = []
        for names, run in chunks:
            count = bisect_right(names, limit)
            ready += names[:count]
            rest = names[count:] or next(run, [])
            if rest:
                left.append((rest, run))
        ready.sort()
        for name in ready:
            yield name
        chunks = left
