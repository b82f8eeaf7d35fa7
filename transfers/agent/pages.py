"""Pages of a listing: names of one folder that follow each other, with a digest of all that tells whether they changed."""

import hashlib
import zlib
from typing import Any, List

from transfers.agent.records import FILE, FOLDER, LINK, Record, pack_record

# A page ends with its folder, and behind every name whose checksum says so: where a name was added or is gone,
# the ends behind it fall on the same names at both sides again.
_CUT = 511
_EXECUTE = 0o100


class Pages(object):
    """Packs records into `block`, page after page.

    The digest is over path, kind, size, mtime and execute bit of files, over paths of folders, and over paths and
    targets of symlinks. It is empty for a page that holds anything else, which is never passed over.
    """

    def __init__(self) -> None:
        self._folder = b""
        self._begin_block()

    def _begin_block(self) -> None:
        self.block = bytearray()
        self._told: List[List[Any]] = []
        self._begin()

    def _begin(self) -> None:
        self._start = len(self.block)
        self._names = self._files = self._size = 0
        self._parts: List[bytes] = []
        self._comparable = True

    def add(self, record: Record) -> None:
        """One more record, in the order of the listing."""
        path, kind, size = record[:3]
        folder = path if kind == FOLDER else path.rpartition(b"/")[0]
        if folder != self._folder:
            self._end()
            self._folder = folder
        self.block += pack_record(record)
        self._names += 1
        if kind == FILE:
            self._files += 1
            self._size += size
            self._parts.append(b"%s\0f%d %d %d" % (path, size, record[3], record[4] & _EXECUTE))
        elif kind == FOLDER:
            self._parts.append(path + b"\0d")
        elif kind == LINK:
            self._files += 1
            self._parts.append(path + b"\0l" + record.link)
        else:
            self._comparable = False
        if zlib.crc32(path) & _CUT == 0:
            self._end()

    def _end(self) -> None:
        if self._names:
            digest = hashlib.sha256(b"\0".join(self._parts)).hexdigest() if self._comparable else ""
            self._told.append([self._names, self._files, self._size, len(self.block) - self._start, digest])
            self._begin()

    def take(self) -> List[List[Any]]:
        """End the page that is open; what is told of each in the block: names, files and links, their bytes, packed length, digest."""
        self._end()
        return self._told

    def clear(self) -> None:
        """The block was sent; the next one begins."""
        self._begin_block()
