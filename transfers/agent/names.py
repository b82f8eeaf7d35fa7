"""Read the names in a folder in byte order."""

import os
from bisect import bisect_left, bisect_right
from itertools import islice
from typing import Any, Iterator, List

from transfers.agent.progress import step

_RUN = 16 * 1024  # names sorted as objects, which take five times the memory of packed ones
_CHUNK = 256  # names of each packed run that are objects while the runs are merged


class Names(object):
    """All names in a folder, folders with a trailing slash, read at once; raises OSError."""

    def __init__(self, descriptor: int, few: bool = False) -> None:  # noqa: FBT001, FBT002  # Python 3.6 style
        """With `few`, raise OverflowError for a folder with very many names."""
        self._packed: List[bytes] = []
        self._names: List[bytes] = []
        with _scan(descriptor) as entries:
            while True:
                step()
                found = [_name(entry) for entry in islice(entries, _RUN)]
                if not found:
                    break
                if self._names and few:
                    raise OverflowError
                if self._names:
                    self._packed.append(b"\0".join(self._names) + b"\0")
                # encoded together, because a call for each takes as long as reading the folder
                self._names = sorted(os.fsencode("\0".join(found)).split(b"\0"))

    def __contains__(self, name: bytes) -> bool:
        position = bisect_left(self._names, name)
        if self._names[position : position + 1] == [name]:
            return True
        name += b"\0"
        return any(packed.startswith(name) or b"\0" + name in packed for packed in self._packed)

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


def _unpack(packed: bytes) -> Iterator[List[bytes]]:
    """Yield the names of a packed run in chunks."""
    position = 0
    while position < len(packed):
        names = packed[position:].split(b"\0", _CHUNK)
        rest = names.pop()
        position = len(packed) - len(rest)
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
