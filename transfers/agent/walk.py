"""Listing everything below a root in the canonical order."""

import errno
import os
import stat
from typing import Iterator, List, Optional, Tuple

from transfers.agent import own_names
from transfers.agent.beneath import Root, record_of
from transfers.agent.journal import read_seeds
from transfers.agent.names import Names
from transfers.agent.records import FOLDER, Record

# Vanished between reading the folder and looking at the name: it is not there, which is what a listing says.
_VANISHED = (errno.ENOENT,)


class Walk(object):
    """One listing: iterate it, then look at `count` and `problems` (path, errno) before believing it."""

    def __init__(self, root: Root, *, shallow: bool = False) -> None:
        self._root = root
        self._shallow = shallow
        self._seeds: List[bytes] = []
        self.count = 0
        self.problems: List[Tuple[bytes, int]] = []
        self.orphans: List[bytes] = []

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
                self.problems.append((folder, problem.errno or errno.EIO))
            return
        if own_names.FOLDER + b"/" in names:
            self._seeds += read_seeds(self._root, folder)
        inside_own = folder.rpartition(b"/")[2] == own_names.FOLDER
        for name in names:
            bare = name.rstrip(b"/")
            if inside_own and (bare in own_names.OWN or own_names.is_lock_part(bare)):
                continue
            path = folder + b"/" + bare if folder else bare
            if own_names.has_partial_shape(bare) and any(
                own_names.is_partial_of(seed, bare) for seed in self._seeds
            ):
                self.orphans.append(path)
                continue
            record = self._look(folder, bare, path)
            if record is None:
                continue
            if (record.kind == FOLDER) != name.endswith(b"/"):
                # Under its new kind its place in the order is another, and may have passed.
                self.problems.append((path, errno.EISDIR if record.kind == FOLDER else errno.ENOTDIR))
            else:
                yield record

    def _look(self, folder: bytes, name: bytes, path: bytes) -> Optional[Record]:
        try:
            # asked for each time: what is open is closed when many other folders were
            descriptor = self._root.folder(folder)
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            link = os.fsencode(os.readlink(name, dir_fd=descriptor)) if stat.S_ISLNK(status.st_mode) else b""
        except OSError as problem:
            if problem.errno not in _VANISHED:
                self.problems.append((path, problem.errno or errno.EIO))
            return None
        return record_of(path, status, link)
