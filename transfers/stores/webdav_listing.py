"""Listing a tree at a WebDAV server in the canonical order, a few folders ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future

from hibali.errors import HibaliError, RefusedError
from hibali.text import printable
from transfers.agent import own_names
from transfers.entry import Entry
from transfers.store import Problem, unsafe_component
from transfers.stores.s3_errors import problem_of
from transfers.stores.webdav_files import Children, Files
from transfers.stores.webdav_known import Found
from transfers.stores.webdav_own import OWN, Own, below

_FOLDERS_AHEAD = 8
_NAMES_AHEAD = 64


class Listing:
    """One walk: iterate it, then look at `problems`, `orphans` and `places`."""

    def __init__(self, files: Files, pool: Executor, root: bytes, own: Own, *, shallow: bool = False) -> None:
        """`root` is a folder; what it holds is told by paths below it."""
        self._files = files
        self._pool = pool
        self._root = root
        self._own = own
        self._shallow = shallow
        self._seeds: list[bytes] = []
        self._ahead: dict[bytes, Future[Children]] = {}
        self.problems: list[tuple[bytes, Problem]] = []
        self.orphans: list[bytes] = []
        self.places: list[bytes] = []  # which have a `.hibali`

    def __iter__(self) -> Iterator[Entry]:
        """Entries by the bytes of the whole path, a folder's with a slash behind it."""
        stack = [self._children(b"")]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
                continue
            entry, folder = found
            if not folder or entry.path.rpartition(b"/")[2] != OWN:
                yield entry
            if folder and not self._shallow:
                stack.append(self._children(entry.path))

    def _children(self, folder: bytes) -> Iterator[tuple[Entry, bool]]:
        """What one folder holds without names of our own, and whether each is a folder."""
        asked = self._ahead.pop(folder, None)
        try:
            children = asked.result() if asked is not None else self._look(folder)
            if children.own:
                self._seeds += self._own.seeds(folder)
                self.places.append(folder)
        except HibaliError as problem:
            if not folder:
                raise
            if problem.code != "vanished":  # meanwhile: it is not there, which is what a listing says
                self.problems.append((folder, problem_of(problem, denied=True)))
            return
        for name, found in self._look_ahead(folder, children.names):
            path = below(folder, name)
            self._refuse_unsafe(name, path)
            if self._is_own(folder, path):
                continue
            if found.size < 0:
                self.problems.append((path, _why(found)))
            else:
                yield found.entry(path), found.folder

    def _look(self, folder: bytes) -> Children:
        return self._files.children(below(self._root, folder))

    def _look_ahead(
        self, folder: bytes, names: Iterator[tuple[bytes, Found]]
    ) -> Iterator[tuple[bytes, Found]]:
        """The same names without slashes; folders that come soon are asked for meanwhile."""
        coming: deque[tuple[bytes, Found]] = deque()
        for listed, found in names:
            name = listed.removesuffix(b"/")
            coming.append((name, found))
            if found.folder and not self._shallow and name != OWN and len(self._ahead) < _FOLDERS_AHEAD:
                path = below(folder, name)
                self._ahead[path] = self._pool.submit(self._look, path)
            if len(coming) > _NAMES_AHEAD:
                yield coming.popleft()
        yield from coming

    def _refuse_unsafe(self, name: bytes, path: bytes) -> None:
        reason = unsafe_component(name)
        if reason:
            raise RefusedError(
                "unsafe-name", f"{printable(path)} cannot be a path: {reason}", about=self._files.about
            )

    def _is_own(self, folder: bytes, path: bytes) -> bool:
        name = path.rpartition(b"/")[2]
        if folder.rpartition(b"/")[2] == OWN and (
            name in own_names.OWN or own_names.is_lock_part(name) or name == b"probe"
        ):
            return True
        if own_names.has_partial_shape(name) and any(
            own_names.is_partial_of(seed, name) for seed in self._seeds
        ):
            self.orphans.append(path)
            return True
        return False


def _why(found: Found) -> Problem:
    """Why a name could not be looked at."""
    if found.tag in {"401", "403"}:
        return Problem("denied", "the server does not allow this")
    return Problem("no-size", "the server does not tell how large it is")
