"""Large buffers that are used again: fresh memory costs as much as the copy into it."""

from collections import deque
from typing import Deque, Union

BULK_BYTES = 256 * 1024  # below this fresh memory is cheaper than looking after it
_ROUND_BYTES = 4 * 1024 * 1024
_KEPT = 10


class Buffers(object):
    """Hands buffers out and takes them back; threads may share one."""

    def __init__(self) -> None:
        self._free: Deque[bytearray] = deque()

    def take(self, length: int) -> Union[bytearray, memoryview]:
        """So many bytes, whatever they hold."""
        if length < BULK_BYTES:
            return bytearray(length)
        try:
            found = self._free.pop()
        except IndexError:
            found = bytearray()
        if len(found) < length:
            found = bytearray(-(-length // _ROUND_BYTES) * _ROUND_BYTES)
        return memoryview(found)[:length]

    def give(self, body: Union[bytes, bytearray, memoryview]) -> None:
        """Nobody looks at it any more; what was not taken from here is left alone."""
        if isinstance(body, memoryview) and isinstance(body.obj, bytearray) and len(self._free) < _KEPT:
            self._free.append(body.obj)
