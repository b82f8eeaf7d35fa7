"""List a tree in byte order, in pages with a digest each."""

import errno
import hashlib
import heapq
import os
import stat
import zlib
from typing import Any, Iterator, List, Optional, Tuple

from transfers.agent import protocol
from transfers.agent.journal import read_seeds
from transfers.agent.lease import may_be_held
from transfers.agent.protocol import (
    IS_FILE,
    IS_FOLDER,
    IS_LINK,
    Problem,
    Record,
    RefusedError,
    pack_record,
    problem_of,
)
from transfers.agent.safe_path import Root, record_of
from transfers.agent.writing import with_attributes

_RUN = 16 * 1024  # names sorted as objects, which take five times the memory of packed ones


class Names(object):
    """All names in a folder, folders with a trailing slash, read at once; raises OSError."""

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
                    pass  # the kind is determined later, when the name is visited
                self._names.append(name)
        self._names.sort()

    def __contains__(self, name: bytes) -> bool:
        return name in self._names or any(b"\0" + name + b"\0" in packed for packed in self._packed)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate in byte order."""
        if not self._packed:
            return iter(self._names)
        return heapq.merge(self._names, *map(_unpack, self._packed))


def _scan(descriptor: int) -> Any:
    """Scan a folder by its /proc path (proc(5)): Python 3.6 accepts no descriptor here."""
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


# A name that vanished after its folder was read is not listed, and is no problem.
_VANISHED = (errno.ENOENT,)


class Walk(object):
    """One listing: iterate it, then check `count` and `problems` before using it."""

    def __init__(self, root: Root, *, shallow: bool = False, attributes: bool = False) -> None:
        self._root = root
        self._shallow = shallow
        self._attributes = attributes
        self._seeds: List[bytes] = []
        self._seeds_in_use: List[bytes] = []
        self.count = 0
        self.problems: List[Tuple[bytes, Problem]] = []
        self.orphans: List[bytes] = []
        self.in_use: List[bytes] = []  # partial files of clients that may be writing below
        self.targets_below: List[bytes] = []  # folders below that were targets of other operations

    def __iter__(self) -> Iterator[Record]:
        """Yield records in byte order of the whole path, with a slash after a folder's path.

        Uses a stack because trees can be deeper than Python's recursion limit.
        """
        stack = [self._children(b"")]
        while stack:
            record = next(stack[-1], None)
            if record is None:
                stack.pop()
                continue
            if record.path.rpartition(b"/")[2] != protocol.OWN_FOLDER or record.kind != IS_FOLDER:
                self.count += 1
                yield record
            if record.kind == IS_FOLDER and not self._shallow:
                stack.append(self._children(record.path))

    def _children(self, folder: bytes) -> Iterator[Record]:
        """Yield a folder's entries in order, without hibali's own names; each is examined when reached."""
        try:
            names = Names(self._root.folder(folder))
        except OSError as problem:
            if problem.errno not in _VANISHED or not folder:
                self.problems.append((folder, problem_of(problem)))
            return
        if protocol.OWN_FOLDER + b"/" in names:
            self._read_seeds_below(folder)
        inside_own = folder.rpartition(b"/")[2] == protocol.OWN_FOLDER
        above = folder + b"/" if folder else b""
        descriptor = None
        for name in names:
            is_folder = name[-1:] == b"/"
            bare = name[:-1] if is_folder else name
            if inside_own and (bare in protocol.OWN or protocol.is_lock_part(bare)):
                continue
            path = above + bare
            if bare[:1] == b"." and protocol.has_partial_shape(bare) and self._is_partial(bare, path):
                continue
            if descriptor is None:
                descriptor = self._descriptor(folder, path)
                if descriptor is None:
                    continue
            record = self._examine(descriptor, bare, path)
            if record is None:
                continue
            if record.kind == IS_FOLDER:
                descriptor = None  # visiting many folders below may close the open one
            if (record.kind == IS_FOLDER) != is_folder:
                # The new kind has another position in the order, which may have passed.
                number = errno.EISDIR if record.kind == IS_FOLDER else errno.ENOTDIR
                self.problems.append((path, problem_of(OSError(number, os.strerror(number)))))
            else:
                yield record

    def _read_seeds_below(self, folder: bytes) -> None:
        """Read the seeds of a target below; partial files of a running client are not orphans."""
        if folder:
            self.targets_below.append(folder)
        in_use = folder and may_be_held(self._root, folder)
        (self._seeds_in_use if in_use else self._seeds).extend(read_seeds(self._root, folder))

    def _is_partial(self, name: bytes, path: bytes) -> bool:
        for seeds, found in ((self._seeds, self.orphans), (self._seeds_in_use, self.in_use)):
            if any(protocol.is_partial_of(seed, name) for seed in seeds):
                found.append(path)
                return True
        return False

    def _descriptor(self, folder: bytes, path: bytes) -> Optional[int]:
        """Return the open folder; None if it vanished or (a noted problem) cannot be opened."""
        try:
            return self._root.folder(folder)
        except OSError as problem:
            self._note(path, problem)
            return None

    def _note(self, path: bytes, problem: OSError) -> None:
        if problem.errno not in _VANISHED:
            self.problems.append((path, problem_of(problem)))

    def _examine(self, descriptor: int, name: bytes, path: bytes) -> Optional[Record]:
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            link = os.fsencode(os.readlink(name, dir_fd=descriptor)) if stat.S_ISLNK(status.st_mode) else b""
        except OSError as problem:
            self._note(path, problem)
            return None
        record = record_of(path, status, link)
        return self._with_attributes(descriptor, name, record) if self._attributes else record

    def _with_attributes(self, descriptor: int, name: bytes, record: Record) -> Optional[Record]:
        """Return the record with its attributes; report a name whose attributes cannot be read and leave it out."""
        try:
            return with_attributes(descriptor, name, record)
        except (OSError, RefusedError) as problem:
            self.problems.append((record.path, problem_of(problem)))
            return None


# A page ends with its folder, and after each name whose checksum matches this mask (content-defined chunking):
# after an added or removed name, both endpoints cut pages at the same names again.
_CUT = 511
_EXECUTE = 0o100


class Pages(object):
    """Packs records into `block`, page after page.

    The digest covers path, kind, size, mtime and execute bit of files, paths of folders, and paths and targets of
    symlinks. It is empty for a page with any other kind, which is never skipped.
    """

    def __init__(self) -> None:
        self._folder = b""
        self.clear()

    def clear(self) -> None:
        """Begin the next block, after this one was sent."""
        self.block = bytearray()
        self._pages: List[List[Any]] = []
        self._begin()

    def _begin(self) -> None:
        self._start = len(self.block)
        self._names = self._files = self._size = 0
        self._parts: List[bytes] = []
        self._comparable = True

    def add(self, record: Record) -> None:
        """Add one record, in listing order."""
        path, kind, size = record[:3]
        folder = path if kind == IS_FOLDER else path.rpartition(b"/")[0]
        if folder != self._folder:
            self._end()
            self._folder = folder
        self.block += pack_record(record)
        self._names += 1
        if kind == IS_FILE:
            self._files += 1
            self._size += size
            self._parts.append(b"%s\0f%d %d %d" % (path, size, record[3], record[4] & _EXECUTE))
        elif kind == IS_FOLDER:
            self._parts.append(path + b"\0d")
        elif kind == IS_LINK:
            self._files += 1
            self._parts.append(path + b"\0l" + record.link)
        else:
            self._comparable = False
        if zlib.crc32(path) & _CUT == 0:
            self._end()

    def _end(self) -> None:
        if self._names:
            digest = hashlib.sha256(b"\0".join(self._parts)).hexdigest() if self._comparable else ""
            self._pages.append([self._names, self._files, self._size, len(self.block) - self._start, digest])
            self._begin()

    def end_block(self) -> List[List[Any]]:
        """End the open page; return for each page of the block: names, files and links, their bytes, packed length, digest."""
        self._end()
        return self._pages
