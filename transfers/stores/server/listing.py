"""List a tree at a server without an agent, folder by folder or as the server lists it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

from transfers.agent import protocol
from transfers.model.entry import Entry, Kind
from transfers.model.units import Problem


def walk_tree(children: Callable[[bytes], Iterable[Entry]], *, shallow: bool = False) -> Iterator[Entry]:
    """Yield all entries below a root; `children` returns the sorted entries of one folder.

    Folders named `.hibali` are omitted, but not their contents: a user may have files there.
    """
    stack = [iter(children(b""))]
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
            continue
        if entry.kind is not Kind.FOLDER or entry.path.rpartition(b"/")[2] != protocol.OWN_FOLDER:
            yield entry
        if entry.kind is Kind.FOLDER and not shallow:
            stack.append(iter(children(entry.path)))


class ServerListing(ABC):
    """One walk of a tree at a server without an agent, as an iterable of sorted entries.

    Attributes:
        problems: Folders and names that could not be listed.
        orphans: Partial files of interrupted operations.
        own_folders: Folders with a `.hibali`.

    All are complete after the iteration.
    """

    own_names: tuple[bytes, ...] = protocol.OWN  # hibali's files in a `.hibali`

    def __init__(self, *, shallow: bool) -> None:
        self._shallow = shallow
        self._seeds: list[bytes] = []  # of partial names
        self.problems: list[tuple[bytes, Problem]] = []
        self.orphans: list[bytes] = []
        self.own_folders: list[bytes] = []

    def __iter__(self) -> Iterator[Entry]:
        return walk_tree(self._children, shallow=self._shallow)

    @abstractmethod
    def _children(self, folder: bytes) -> Iterable[Entry]:
        """Return the sorted entries of a folder without hibali's own files."""

    def _is_own(self, folder: bytes, path: bytes) -> bool:
        """Return whether an entry of `folder` is hibali's own; record it if it is a partial file."""
        name = path.rpartition(b"/")[2]
        if folder.rpartition(b"/")[2] == protocol.OWN_FOLDER and (
            name in self.own_names or protocol.is_lock_part(name)
        ):
            return True
        if protocol.has_partial_shape(name) and any(
            protocol.is_partial_of(seed, name) for seed in self._seeds
        ):
            self.orphans.append(path)
            return True
        return False
