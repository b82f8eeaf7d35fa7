"""Writing files that have holes at their source: whole blocks of zeros are left out where nothing else stands."""

import os
from typing import Any, Dict, Iterator, Tuple

_BLOCK = 4096  # what filesystems allocate at least (ext4, XFS, Lustre and tmpfs by default)
_ZEROS = bytes(_BLOCK)
_CHUNK = 1024 * 1024


def write_at(descriptor: int, item: Dict[str, Any], content: memoryview, offset: int) -> None:
    """All of it at its place, of a sparse file without its blocks of zeros: whoever opened it sets the length. Raises OSError."""
    if not item["sparse"]:
        write_piece(descriptor, content, offset)
        return
    for zeros, start, end in _runs(content, offset):
        # An earlier attempt may have left something: a hole is where zeros are read, not what was never written.
        if not (zeros and _is_empty(descriptor, offset + start, end - start)):
            write_piece(descriptor, content[start:end], offset + start)


def write_piece(descriptor: int, content: memoryview, offset: int) -> None:
    """All of it at its place. Raises OSError."""
    while len(content):
        written = os.pwrite(descriptor, content, offset)
        content = content[written:]
        offset += written


def _runs(content: memoryview, offset: int) -> Iterator[Tuple[bool, int, int]]:
    """Stretches of whole zero blocks, as the file counts blocks, and of anything else: (zeros, start, end)."""
    length = len(content)
    start = position = 0
    before = False
    while position < length:
        stop = min(length, position + _BLOCK - (offset + position) % _BLOCK)
        zeros = (
            stop - position == _BLOCK
            and content[position] == 0
            and content[stop - 1] == 0
            and bytes(content[position:stop]) == _ZEROS
        )
        if zeros != before:
            if position > start:
                yield before, start, position
            start, before = position, zeros
        position = stop
    if length > start:
        yield before, start, length


def _is_empty(descriptor: int, offset: int, length: int) -> bool:
    """Whether only zeros are there, or nothing yet."""
    end = offset + length
    while offset < end:
        found = os.pread(descriptor, min(_CHUNK, end - offset), offset)
        if found.count(0) != len(found):
            return False
        if not found:
            return True
        offset += len(found)
    return True
