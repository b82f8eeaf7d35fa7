"""What stands at one place, listed, and hashed where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from hibali.errors import NotFoundError
from hibali.events import Listener
from hibali.locations import Location
from transfers.datasets.view import see_dataset
from transfers.entry import Entry, Kind
from transfers.mover import Side
from transfers.packs.seeing import Seeing
from transfers.places import open_store
from transfers.rules import Selector
from transfers.selection import unmet
from transfers.single import SingleTarget
from transfers.spool import EntrySpool
from transfers.store import ListingIncompleteError, Problem, Store

_SHA256 = re.compile(r"[0-9a-f]{64}")

Digested = tuple[Entry, str | None, Problem | None]


@dataclass(slots=True)
class Tree:
    """The files and symlinks that a filter takes, in canonical order, on disk; `single` where the place is one file.

    `specials` counts devices, FIFOs and sockets; `unlisted` is what could not be looked at; `missing` are the names of a
    list that nothing here meets.
    """

    location: Location
    where: bytes
    side: Side
    stores: list[Store]
    single: bool = False
    files: EntrySpool = field(default_factory=EntrySpool)
    links: EntrySpool = field(default_factory=EntrySpool)
    specials: int = 0
    unlisted: list[tuple[bytes, Problem]] = field(default_factory=list)
    missing: set[bytes] = field(default_factory=set)

    def question(self) -> list[str | None]:
        """The place as its site knows it, for naming what is kept about it."""
        return [self.location.site.name, self.location.bucket, self.where.decode("utf-8", "surrogateescape")]

    def digests(self, entries: Iterable[Entry]) -> Iterator[Digested]:
        """The sha256 of the content as it is now, in the order asked; from a site only digests travel."""
        for entry, digest, problem in self.side.digest(entries):
            if digest is None or _is_sha256(digest):
                yield entry, digest, problem
            else:
                # it would stand in manifests as it came
                yield entry, None, Problem("no-digest", "the site answered with something that is no sha256")

    def close(self) -> None:
        """Forget what was listed."""
        self.files.close()
        self.links.close()

    def list(self, selected: Selector, names: frozenset[bytes] | None = None) -> None:
        """Look at it all."""
        try:
            for entry in unmet(names, self.side.list(), self.missing) if names else self.side.list():
                if entry.kind is Kind.FOLDER or not selected(entry):
                    continue
                if entry.kind is Kind.FILE:
                    self.files.add(entry)
                elif entry.kind is Kind.LINK:
                    self.links.add(entry)
                else:
                    self.specials += 1
        except ListingIncompleteError as problem:
            self.unlisted = problem.unlisted


def _is_sha256(told: object) -> bool:
    return isinstance(told, str) and _SHA256.fullmatch(told) is not None


def open_tree(
    location: Location,
    selected: Selector,
    tell: Listener,
    stack: ExitStack,
    names: frozenset[bytes] | None = None,
) -> Tree:
    """The tree at a place: all below a folder, or one file, which no filter leaves out. Raises `NotFoundError`.

    What is opened is closed with `stack`. Which of `names` nothing meets is told by the tree.
    """

    def opened(at: Location) -> Store:
        return open_store(at, tell=tell)

    seeing = Seeing(lambda at: see_dataset(opened(at), at, opened, tell, brings=False))

    store, found = seeing.find(location)
    stack.callback(store.close)
    if found is None:
        raise NotFoundError("no-such-place", "there is nothing there", about=location.text)
    if found.kind is not Kind.FILE:
        tree = Tree(location, store.where, store, [store])
        stack.callback(tree.close)
        tree.list(selected, names)
        return tree
    folder = seeing.parent(store, location)
    stack.callback(folder.close)
    tree = Tree(location, store.where, SingleTarget(folder, location.name), [store, folder], single=True)
    stack.callback(tree.close)
    tree.list(_take_all)
    return tree


def _take_all(entry: Entry) -> bool:
    del entry
    return True
