"""List a tree in byte order, in pages with a digest each."""

import errno
import hashlib
import os
import struct
import zlib
from typing import Any, Iterator, List, Optional, Tuple

from transfers.agent import protocol
from transfers.agent.journal import read_seeds
from transfers.agent.lease import may_be_held
from transfers.agent.prefetching import Folder, Prefetcher
from transfers.agent.progress import step
from transfers.agent.protocol import (
    IS_FILE,
    IS_FOLDER,
    IS_LINK,
    Problem,
    Record,
    RecordError,
    RefusedError,
    pack_record,
    pack_records,
    problem_of,
)
from transfers.agent.safe_path import Root, record_of
from transfers.agent.writing import with_attributes

_SLASH, _DOT = b"/."

# A name that vanished after its folder was read is not listed, and is no problem.
_VANISHED = (errno.ENOENT,)


# Names that are examined, and passed on, at a time.
_MOST = 256

Run = Tuple[bytes, List[Record]]  # a folder, and consecutive records of names in it, or its own record


class Walk(object):
    """One listing: iterate it, then check `count` and `problems` before using it.

    Of several paths, none inside another, it has `only` those, the folders above them and what is below them.
    """

    def __init__(
        self,
        root: Root,
        *,
        shallow: bool = False,
        attributes: bool = False,
        only: Optional[List[bytes]] = None,
    ) -> None:
        self._root = root
        self._only = None if only is None else set(only)
        self._ways = {above for name in only or () for above in _folders_above(name)}
        self._shallow = shallow
        self._attributes = attributes
        self._prefetcher = Prefetcher(root, not shallow, None if only is None else self._leaves_out)
        self._seeds: List[bytes] = []
        self._seeds_in_use: List[bytes] = []
        self.count = 0
        self.problems: List[Tuple[bytes, Problem]] = []
        self.orphans: List[bytes] = []
        self.in_use: List[bytes] = []  # partial files of clients that may be writing below
        self.targets_below: List[bytes] = []  # folders below that were targets of other operations

    def __iter__(self) -> Iterator[Run]:
        """Yield records in byte order of the whole path, with a slash after a folder's path.

        Uses a stack because trees can be deeper than Python's recursion limit.
        """
        try:
            for run in self._runs():
                yield run
        finally:
            self._prefetcher.close()

    def _runs(self) -> Iterator[Run]:
        stack = [(b"", self._children(b""))]
        while stack:
            folder, children = stack[-1]
            records = next(children, None)
            if records is None:
                stack.pop()
                continue
            if records[0].kind != IS_FOLDER:
                self.count += len(records)
                yield folder, records
                continue
            path = records[0].path
            if path.rpartition(b"/")[2] != protocol.OWN_FOLDER:
                self.count += 1
                yield path, records
            if not self._shallow:
                stack.append((path, self._children(path)))

    def _children(self, folder: bytes) -> Iterator[List[Record]]:
        """Yield a folder's entries in order, without hibali's own names, each folder in it as a list of its own.

        Names are examined when they are reached, or shortly before.
        """
        opened = self._open(folder)
        if opened is None:
            return
        inside_own = folder.rpartition(b"/")[2] == protocol.OWN_FOLDER
        above = folder + b"/" if folder else b""
        descriptor = None
        found: List[Record] = []
        for name in self._prefetcher.names(opened):
            is_folder = name[-1] == _SLASH
            bare = name[:-1] if is_folder else name
            path = above + bare
            if (inside_own or bare[0] == _DOT) and self._is_own(bare, path, inside_own):
                continue
            if self._only is not None and self._leaves_out(folder, bare):
                continue
            if descriptor is None:
                descriptor = self._descriptor(folder, path)
                if descriptor is None:
                    continue
            record = self._examine(opened, descriptor, bare, path, is_folder)
            if record is None:
                continue
            if is_folder or len(found) == _MOST:
                if found:
                    yield found
                found = []
            if is_folder:
                descriptor = None  # visiting many folders below may close the open one
                yield [record]
            else:
                found.append(record)
        if found:
            yield found

    def _leaves_out(self, folder: bytes, name: bytes) -> bool:
        """Return whether a name in a listed folder is neither one of the only paths, nor above or below one."""
        if self._only is None or (folder and folder not in self._ways):
            return False
        path = folder + b"/" + name if folder else name
        return path not in self._only and path not in self._ways

    def _open(self, folder: bytes) -> Optional[Folder]:
        """Read a folder, and the seeds in its own folder of hibali; None if (a noted problem) it cannot be read."""
        try:
            opened = self._prefetcher.open(folder)
        except OSError as problem:
            if problem.errno not in _VANISHED or not folder:
                self.problems.append((folder, problem_of(problem)))
            return None
        if opened.names.has_own_folder:
            self._read_seeds_below(folder)
        return opened

    def _read_seeds_below(self, folder: bytes) -> None:
        """Read the seeds of a target below; partial files of a running client are not orphans."""
        if folder:
            self.targets_below.append(folder)
        in_use = folder and may_be_held(self._root, folder)
        (self._seeds_in_use if in_use else self._seeds).extend(read_seeds(self._root, folder))

    def _is_own(self, name: bytes, path: bytes, inside_own: bool) -> bool:  # noqa: FBT001  # one caller
        """Return whether hibali made this name: in its own folder, or a partial file."""
        if inside_own and (name in protocol.OWN or protocol.is_lock_part(name)):
            return True
        return protocol.has_partial_shape(name) and self._is_partial(name, path)

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

    def _examine(
        self,
        folder: Folder,
        descriptor: int,
        name: bytes,
        path: bytes,
        is_folder: bool,  # noqa: FBT001  # one caller
    ) -> Optional[Record]:
        """Return the record of a name in an open folder; None if it vanished or (a noted problem) cannot be listed."""
        step()
        try:
            status = folder.status(name) if folder.found else None
            record = record_of(path, status or os.stat(name, dir_fd=descriptor, follow_symlinks=False))
            if record[1] == IS_LINK:
                record = record._replace(link=os.fsencode(os.readlink(name, dir_fd=descriptor)))
        except OSError as problem:
            self._note(path, problem)
            return None
        if (record[1] == IS_FOLDER) != is_folder:
            # The new kind has another position in the order, which may have passed.
            number = errno.ENOTDIR if is_folder else errno.EISDIR
            self.problems.append((path, problem_of(OSError(number, os.strerror(number)))))
            return None
        return self._with_attributes(descriptor, name, record) if self._attributes else record

    def _with_attributes(self, descriptor: int, name: bytes, record: Record) -> Optional[Record]:
        """Return the record with its attributes; report a name whose attributes cannot be read and leave it out."""
        try:
            return with_attributes(descriptor, name, record)
        except (OSError, RefusedError) as problem:
            self.problems.append((record.path, problem_of(problem)))
            return None


def _folders_above(path: bytes) -> Iterator[bytes]:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


# A page ends with its folder, and after each name whose checksum matches this mask (content-defined chunking):
# after an added or removed name, both endpoints cut pages at the same names again.
_CUT = 511
_MOST_NAMES = 4096  # in a page in which no checksum matches
_EXECUTE = 0o100


class Pages(object):
    """Packs records into `block`, page after page.

    The digest covers path, kind, size, mtime and execute bit of files, paths of folders, and paths and targets of
    symlinks. It is empty for a page with any other kind, which is never skipped.
    """

    def __init__(self) -> None:
        self._folder = b""
        self._records: List[Record] = []
        self.problems: List[Tuple[bytes, Problem]] = []  # names that cannot be packed
        self.clear()

    def clear(self) -> None:
        """Begin the next block, after this one was sent."""
        self.block = bytearray()
        self.pages: List[List[Any]] = []

    def add(self, folder: bytes, records: List[Record]) -> None:
        """Add records of names in one folder, or its own, in listing order."""
        if folder != self._folder or len(self._records) >= _MOST_NAMES:
            self.end()
            self._folder = folder
        began = 0
        for position, checksum in enumerate(map(zlib.crc32, [record[0] for record in records]), 1):
            if not checksum & _CUT:
                self._records += records[began:position]
                self.end()
                began = position
        self._records += records[began:]

    def end(self) -> None:
        """End the open page: add to `pages` the number of names, files and links, their bytes, packed length, digest."""
        records, self._records = self._records, []
        try:
            packed = pack_records(records)
        except RecordError:
            records, packed = self._packed_singly(records)
        if not records:
            return
        self.block += packed
        files = [record for record in records if record[1] == IS_FILE]
        links = [record for record in records if record[1] == IS_LINK]
        size = sum([record[2] for record in files])
        digest = _digest(records, files, links)
        self.pages.append([len(records), len(files) + len(links), size, len(packed), digest])

    def _packed_singly(self, records: List[Record]) -> Tuple[List[Record], bytes]:
        """Pack each record alone, and note those that cannot be packed."""
        good, packed = [], bytearray()
        for record in records:
            try:
                packed += pack_record(record)
                good.append(record)
            except RecordError as problem:
                self.problems.append((record.path, problem_of(problem)))
        return good, bytes(packed)


def _digest(records: List[Record], files: List[Record], links: List[Record]) -> str:
    """Return the digest of a page; empty if it cannot be compared."""
    if sum(record[1] == IS_FOLDER for record in records) + len(files) + len(links) != len(records):
        return ""
    try:
        numbers = struct.pack(
            ">{}q".format(2 * len(files)), *[record[2] for record in files], *[record[3] for record in files]
        )
    except struct.error:  # a time beyond 64 bits
        return ""
    parts = [
        b"".join([record[1] for record in records]),
        numbers,
        bytes([record[4] & _EXECUTE for record in files]),
    ]
    texts = [record[0] for record in records] + [record[9] for record in links]
    return hashlib.sha256(b"".join(parts) + b"\0".join(texts)).hexdigest()
