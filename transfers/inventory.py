"""The digest of every file at a place, hashed there, in canonical order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

from hibali.events import Carried, Failed, Hashing, Listener, Noted, ignore
from hibali.locations import Location
from transfers.digest_book import DigestBook
from transfers.entry import Entry, Proof
from transfers.rules import Rules, selector
from transfers.store import Problem
from transfers.tree import Tree, open_tree


class Hashed(NamedTuple):
    """One file, its sha256 in hexadecimal, and whether it was computed now (DIGEST) or earlier (RECORDED)."""

    entry: Entry
    digest: str
    proof: Proof


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to take stock of; `recorded` takes digests on record where the files are what they were.

    `leave_out` is a file there that is no part of it: the manifest that is being written.
    """

    location: Location
    rules: Rules = field(default_factory=Rules)
    recorded: bool = False
    leave_out: bytes | None = None


class Inventory:
    """One place, listed when it is entered, hashed as `hashed` is read; what could not be read is told as `Failed`."""

    tree: Tree

    def __init__(self, wanted: Wanted, tell: Listener = ignore) -> None:
        self._wanted = wanted
        self._selected = selector(wanted.rules)
        self._tell = tell
        self._stack = ExitStack()
        self.failures = 0

    def __enter__(self) -> Self:
        """List it; raises the errors of reaching and listing."""
        with ExitStack() as stack:
            self.tree = open_tree(self._wanted.location, self._selected, self._tell, stack)
            self._stack = stack.pop_all()
        for path, problem in self.tree.unlisted:
            self._fail(path, problem)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _fail(self, path: bytes, problem: Problem | None) -> None:
        reason = problem or Problem("unreadable", "it could not be read")
        self.failures += 1
        self._tell(Failed(path, reason.code, reason.message))

    def hashed(self) -> Iterator[Hashed]:
        """Every regular file that could be read; how many names are of another kind is told as `Noted`."""
        tree, recorded = self.tree, self._wanted.recorded
        if tree.links.count or tree.specials:
            self._tell(Noted(f"Not in it: {tree.links.count} symlinks and {tree.specials} special files."))
        with closing(DigestBook("digests", tree.question(), keep=recorded)) as book:
            count = size = 0
            for entry in self._unknown(book):
                count, size = count + 1, size + entry.size
            self._tell(Hashing(count, size))
            now = self._now(self._unknown(book), book)
            for entry in self._files():
                earlier = self._earlier(entry, book)
                digest = next(now) if earlier is None else earlier
                if digest is not None:
                    yield Hashed(entry, digest, Proof.DIGEST if earlier is None else Proof.RECORDED)

    def _files(self) -> Iterator[Entry]:
        return (entry for entry in self.tree.files if entry.path != self._wanted.leave_out)

    def _earlier(self, entry: Entry, book: DigestBook) -> str | None:
        """The digest on record, where that is wanted."""
        return (entry.digest or book.find([entry])) if self._wanted.recorded else None

    def _unknown(self, book: DigestBook) -> Iterator[Entry]:
        return (entry for entry in self._files() if self._earlier(entry, book) is None)

    def _now(self, files: Iterable[Entry], book: DigestBook) -> Iterator[str | None]:
        """Hash these there, some ahead; None for one that could not be read."""
        for entry, digest, problem in self.tree.digests(files):
            if digest is None:
                self._fail(entry.path, problem)
            else:
                book.add([entry], digest)
            self._tell(Carried(entry.size))
            yield digest
