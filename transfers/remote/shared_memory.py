"""Pass bulk bytes to the local agent in shared memory, without a copy."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
import weakref
from bisect import insort
from collections import deque
from typing import Any

from transfers.agent.protocol import BULK_BYTES

_ARENA_BYTES = 512 * 1024 * 1024  # of address space: only used pages take memory
_ROUND_BYTES = 64 * 1024


class SharedBuffers:
    """Allocates buffers; a buffer is freed with its last view. Thread-safe."""

    def __init__(self, size: int = _ARENA_BYTES) -> None:
        """`size` is a multiple of 64 KiB. Raises OSError, AttributeError where the system does not support it."""
        self.size = size
        self.descriptor = os.memfd_create("hibali", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, size)
        self._memory = mmap.mmap(self.descriptor, size)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._guard = threading.Lock()
        self._free = [(0, size)]  # offset and length, in order, no two of them adjacent
        self._allocated: dict[int, tuple[weakref.ref[Any], int, int]] = {}
        self._ended: deque[weakref.ref[Any]] = deque()

    def allocate(self, length: int) -> memoryview | None:
        """Allocate an uninitialised buffer of `length` bytes; None while all is in use."""
        rounded = -(-length // _ROUND_BYTES) * _ROUND_BYTES
        with self._guard:
            self._reclaim()
            offset = self._find(rounded)
            if offset is None:
                return None
            # Few types: ctypes never frees an array type.
            buffer = (ctypes.c_char * rounded).from_buffer(self._memory, offset)
            # Called when the last view is deleted, even within `allocate`, so it only notes the buffer. The callback is
            # not Python code, because a KeyboardInterrupt in that would be lost.
            reference = weakref.ref(buffer, self._ended.append)
            self._allocated[id(reference)] = (reference, offset, rounded)
        return memoryview(buffer).cast("B")[:length]

    def offset_of(self, data: bytes | bytearray | memoryview) -> int | None:
        """Return the offset of these bytes in the shared memory; None if they are elsewhere."""
        buffer = data.obj if isinstance(data, memoryview) else None
        if not isinstance(buffer, ctypes.Array) or not data.contiguous:  # type: ignore[union-attr]  # then it is a memoryview
            return None
        offset = ctypes.addressof(ctypes.c_char.from_buffer(data)) - self._start
        return offset if 0 <= offset < self.size else None

    def hold(self, data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
        """Copy the bytes into the shared memory; return them unchanged while there is no space."""
        if self.offset_of(data) is not None:
            return data
        buffer = self.allocate(len(data))
        if buffer is None:
            return data
        buffer[:] = data
        return buffer

    def _find(self, rounded: int) -> int | None:
        """Return the lowest free range that is large enough: used pages are reused."""
        for position, (offset, length) in enumerate(self._free):
            if length == rounded:
                del self._free[position]
                return offset
            if length > rounded:
                self._free[position] = (offset + rounded, length - rounded)
                return offset
        return None

    def _reclaim(self) -> None:
        while self._ended:
            _, offset, length = self._allocated.pop(id(self._ended.popleft()))
            insort(self._free, (offset, length))
            self._free = _joined(self._free)


def _joined(free: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for offset, length in free:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((offset, length))
    return joined


@functools.cache
def arena() -> SharedBuffers | None:
    """Return the buffers of this process; None where the system does not support them."""
    try:
        return SharedBuffers()
    except (OSError, AttributeError):
        return None


def allocate_buffer(length: int) -> bytearray | memoryview:
    """Allocate a buffer for `length` incoming bytes."""
    found = arena() if length >= BULK_BYTES else None
    buffer = found.allocate(length) if found is not None else None
    return bytearray(length) if buffer is None else buffer


__all__ = ["BULK_BYTES", "SharedBuffers", "allocate_buffer", "arena"]
