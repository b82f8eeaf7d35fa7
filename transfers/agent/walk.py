"""Listing everything below a root in the canonical order."""

import errno
import os
import stat
from typing import Iterator, List, Optional, Tuple

from transfers.agent import own_names
from transfers.agent.attributes import with_attributes
from transfers.agent.beneath import Root, record_of
from transfers.agent.journal import read_seeds
from transfers.agent.lease import may_be_held
from transfers.agent.names import Names
from transfers.agent.problems import Problem, RefusedError, problem_of
from transfers.agent.records import FOLDER, Record

# Vanished between reading the folder and looking at the name: it is not there, which is what a listing says.
_VANISHED = (errno.ENOENT,)


class Walk(object):
    """One listing: iterate it, then look at `count` and `problems` before believing it."""

    def __init__(self, root: Root, *, shallow: bool = False, attributes: bool = False) -> None:
        self._root = root
        self._shallow = shallow
        self._attributes = attributes
        self._seeds: List[bytes] = []
        self._seeds_in_use: List[bytes] = []
        self.count = 0
        self.problems: List[Tuple[bytes, Problem]] = []
        self.orphans: List[bytes] = []
        self.under_way: List[bytes] = []  # partial files of somebody who may be at work in a folder below
        self.places: List[bytes] = []  # folders below that were targets by themselves

    def __iter__(self) -> Iterator[Record]:
        """Records in the order of the bytes of the whole path, a folder's path with a slash behind it.

        A stack instead of recursion: trees are deeper than Python's.
        """
        stack = [self._children(b"")]
        while stack:
            record = next(stack[-1], None)
            if record is None:
                stack.pop()
                continue
            if record.path.rpartition(b"/")[2] != own_names.FOLDER or record.kind != FOLDER:
                self.count += 1
                yield record
            if record.kind == FOLDER and not self._shallow:
                stack.append(self._children(record.path))

    def _children(self, folder: bytes) -> Iterator[Record]:
        """What one folder holds, in order; hibali's own names are left out, and each name is looked at when its turn comes."""
        try:
            names = Names(self._root.folder(folder))
        except OSError as problem:
            if problem.errno not in _VANISHED or not folder:
                self.problems.append((folder, problem_of(problem)))
            return
        if own_names.FOLDER + b"/" in names:
            self._meet_place(folder)
        inside_own = folder.rpartition(b"/")[2] == own_names.FOLDER
        above = folder + b"/" if folder else b""
        descriptor = None
        for name in names:
            is_folder = name[-1:] == b"/"
            bare = name[:-1] if is_folder else name
            if inside_own and (bare in own_names.OWN or own_names.is_lock_part(bare)):
                continue
            path = above + bare
            if bare[:1] == b"." and own_names.has_partial_shape(bare) and self._is_partial(bare, path):
                continue
            if descriptor is None:
                descriptor = self._descriptor(folder, path)
                if descriptor is None:
                    continue
            record = self._look(descriptor, bare, path)
            if record is None:
                continue
            if record.kind == FOLDER:
                descriptor = None  # what is open is closed when many other folders were
            if (record.kind == FOLDER) != is_folder:
                # Under its new kind its place in the order is another, and may have passed.
                number = errno.EISDIR if record.kind == FOLDER else errno.ENOTDIR
                self.problems.append((path, problem_of(OSError(number, os.strerror(number)))))
            else:
                yield record

    def _meet_place(self, folder: bytes) -> None:
        """What a holder at a place below is just writing is nobody's leftover."""
        if folder:
            self.places.append(folder)
        in_use = folder and may_be_held(self._root, folder)
        (self._seeds_in_use if in_use else self._seeds).extend(read_seeds(self._root, folder))

    def _is_partial(self, name: bytes, path: bytes) -> bool:
        for seeds, found in ((self._seeds, self.orphans), (self._seeds_in_use, self.under_way)):
            if any(own_names.is_partial_of(seed, name) for seed in seeds):
                found.append(path)
                return True
        return False

    def _descriptor(self, folder: bytes, path: bytes) -> Optional[int]:
        """The folder, open; None where it went, or cannot be opened any more, which is told of the name at `path`."""
        try:
            return self._root.folder(folder)
        except OSError as problem:
            self._note(path, problem)
            return None

    def _note(self, path: bytes, problem: OSError) -> None:
        if problem.errno not in _VANISHED:
            self.problems.append((path, problem_of(problem)))

    def _look(self, descriptor: int, name: bytes, path: bytes) -> Optional[Record]:
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            link = os.fsencode(os.readlink(name, dir_fd=descriptor)) if stat.S_ISLNK(status.st_mode) else b""
        except OSError as problem:
            self._note(path, problem)
            return None
        record = record_of(path, status, link)
        return self._with_attributes(descriptor, name, record) if self._attributes else record

    def _with_attributes(self, descriptor: int, name: bytes, record: Record) -> Optional[Record]:
        """A name whose attributes cannot be read is left out and told: without them it would mean that it has none."""
        try:
            return with_attributes(descriptor, name, record)
        except (OSError, RefusedError) as problem:
            self.problems.append((record.path, problem_of(problem)))
            return None
