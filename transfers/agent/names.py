"""The names in one folder in canonical order, held as packed bytes: folders of a million names are common."""

import heapq
import os
from typing import Any, Iterator, List

_RUN = 16 * 1024  # so many names are sorted as objects, which take five times the memory


class Names(object):
    """Every name in a folder, a folder's with a slash behind it, read whole and at once; raises OSError."""

    def __init__(self, descriptor: int) -> None:
        self._packed: List[bytes] = []
        self._names: List[bytes] = []
        with _scan(descriptor) as entries:
            for entry in entries:
                if len(self._names) == _RUN:
                    self._packed.append(_pack(self._names))
                    self._names = []
                name = os.fsencode(entry.name)
                try:
                    if entry.is_dir(follow_symlinks=False):
                        name += b"/"
                except OSError:
                    pass  # what the folder itself does not say is told when the name's turn comes
                self._names.append(name)
        self._names.sort()

    def __contains__(self, name: bytes) -> bool:
        return name in self._names or any(b"\0" + name + b"\0" in packed for packed in self._packed)

    def __iter__(self) -> Iterator[bytes]:
        """In the order of their bytes."""
        if not self._packed:
            return iter(self._names)
        return heapq.merge(self._names, *map(_unpack, self._packed))


def _scan(descriptor: int) -> Any:
    """Python 3.6 takes no descriptor here, and the kernel has a path for each (proc(5))."""
    try:
        return os.scandir(descriptor)
    except TypeError:
        return os.scandir("/proc/self/fd/{}/.".format(descriptor))


def _pack(names: List[bytes]) -> bytes:
    names.sort()
    return b"\0" + b"\0".join(names) + b"\0"


def _unpack(packed: bytes) -> Iterator[bytes]:
    position = 1
    while position < len(packed):
        end = packed.index(b"\0", position)
        yield packed[position:end]
        position = end + 1
