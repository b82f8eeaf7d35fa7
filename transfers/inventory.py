"""List and hash the files at a location, reuse recorded digests, and sum up usage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol, Self, runtime_checkable

from hibali.errors import NotFoundError
from hibali.events import Carried, Failed, Hashing, Listener, Noted, ignore
from hibali.locations import Location, listing_hint
from hibali.text import counted
from transfers.history.recorded_digests import DigestCache
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.rules import Rules, Selector, concerns, select_all, selector, track_missing
from transfers.model.spool import EntrySpool
from transfers.model.store import Side, Store
from transfers.model.units import ListingIncompleteError, Problem
from transfers.stores.open_views import ViewOpener
from transfers.stores.single_file import SingleTarget

_SHA256 = re.compile(r"[0-9a-f]{64}")

Digested = tuple[Entry, str | None, Problem | None]


Hasher = Callable[
    [Side, Iterable[Entry]], Iterator[Digested]
]  # yields the sha256 of each file, in the given order


@runtime_checkable
class HashingOption(Protocol):
    """An option that lets files be hashed elsewhere, e.g. at compute nodes."""

    def hasher(self, location: Location, on_event: Listener) -> Hasher | None:
        """Return what hashes the files of a location; None if their store does."""


@dataclass(slots=True)
class Tree:
    """The selected files and symlinks at a location, in canonical order, on disk; `single` if it is one file.

    `specials` counts devices, FIFOs and sockets; `unlisted` has what could not be listed; `missing` the
    requested names that match no entry. the `hasher` hashes the files if that was requested.
    """

    location: Location
    root_path: bytes
    side: Side
    stores: list[Store]
    single: bool = False
    files: EntrySpool = field(default_factory=EntrySpool)
    links: EntrySpool = field(default_factory=EntrySpool)
    specials: int = 0
    unlisted: list[tuple[bytes, Problem]] = field(default_factory=list)
    missing: set[bytes] = field(default_factory=set)
    hasher: Hasher | None = None

    def key(self) -> list[str | None]:
        """Return the root as its site knows it, as the key of what is recorded about it."""
        return [
            self.location.site.name,
            self.location.bucket,
            self.root_path.decode("utf-8", "surrogateescape"),
        ]

    def digests(self, entries: Iterable[Entry]) -> Iterator[Digested]:
        """Yield the current sha256 of each file, in the given order, computed at the site where possible."""
        hashed = self.side.digest(entries) if self.hasher is None else self.hasher(self.side, entries)
        for entry, digest, problem in hashed:
            if digest is None or _is_sha256(digest):
                yield entry, digest, problem
            else:
                # an invalid digest would be written into manifests
                yield entry, None, Problem("no-digest", "the site returned an invalid sha256")

    def close(self) -> None:
        """Delete the listing from disk."""
        self.files.close()
        self.links.close()

    def list(self, selected: Selector, names: frozenset[bytes] | None = None) -> None:
        """List all selected entries."""
        try:
            for entry in track_missing(names, self.side.list(), self.missing) if names else self.side.list():
                if entry.kind is Kind.FOLDER or not selected(entry):
                    continue
                if entry.kind is Kind.FILE:
                    self.files.add(entry)
                elif entry.kind is Kind.LINK:
                    self.links.add(entry)
                else:
                    self.specials += 1
        except ListingIncompleteError as problem:
            self.unlisted = [
                each for each in problem.selected(selected) if names is None or concerns(each[0], names)
            ]


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def open_tree(
    location: Location,
    selected: Selector,
    on_event: Listener,
    stack: ExitStack,
    names: frozenset[bytes] | None = None,
    hashing: HashingOption | None = None,
) -> Tree:
    """Return the tree at a location: all in a folder, or one file, which no filter excludes.

    Raises `NotFoundError`. `stack` closes it. `names` that match nothing are in the tree's `missing`.
    """
    opener = ViewOpener(on_event, fetches=False)
    store, found = opener.find(location)
    stack.callback(store.close)
    if found is None:
        raise NotFoundError(
            "no-such-place", "it does not exist", subject=location.text, hint=listing_hint(location.text)
        )
    hasher = None if hashing is None else hashing.hasher(location, on_event)
    if found.kind is not Kind.FILE:
        tree = Tree(location, store.root_path, store, [store], hasher=hasher)
        if names is not None:
            store.list_only(names)
        stack.callback(tree.close)
        tree.list(selected, names)
        return tree
    folder = opener.parent(store, location)
    stack.callback(folder.close)
    side = SingleTarget(folder, location.name)
    tree = Tree(location, store.root_path, side, [store, folder], single=True, hasher=hasher)
    stack.callback(tree.close)
    tree.list(select_all)
    return tree


class Hashed(NamedTuple):
    """A file, its sha256 in hexadecimal, and whether it was computed now (DIGEST) or earlier (RECORDED)."""

    entry: Entry
    digest: str
    verification: Verification


@dataclass(frozen=True, slots=True)
class InventoryRequest:
    """A request to list and hash files; with `recorded`, recorded digests of unchanged files are used.

    `leave_out` is a file to exclude: the manifest that is being written. `hashing` hashes the files.
    """

    location: Location
    rules: Rules = field(default_factory=Rules)
    recorded: bool = False
    leave_out: bytes | None = None
    hashing: HashingOption | None = None


class Inventory:
    """The files at a location; `hashed` hashes them, and unreadable ones are reported as `Failed`."""

    tree: Tree

    def __init__(self, wanted: InventoryRequest, on_event: Listener = ignore) -> None:
        self._wanted = wanted
        self._selected = selector(wanted.rules)
        self._on_event = on_event
        self._stack = ExitStack()
        self.failures = 0

    def __enter__(self) -> Self:
        """List it; raises the errors of connecting and listing."""
        with ExitStack() as stack:
            self.tree = open_tree(
                self._wanted.location, self._selected, self._on_event, stack, None, self._wanted.hashing
            )
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
        self._on_event(Failed(path, reason.code, reason.message))

    def hashed(self) -> Iterator[Hashed]:
        """Yield every readable regular file; the number of other entries is reported as `Noted`."""
        tree, recorded = self.tree, self._wanted.recorded
        if tree.links.count or tree.specials:
            self._on_event(
                Noted(
                    f"Not included: {counted(tree.links.count, 'symlink')}"
                    f" and {counted(tree.specials, 'special file')}."
                )
            )
        with closing(DigestCache("digests", tree.key(), keep=recorded)) as cache:
            count = size = 0
            for entry in self._unknown(cache):
                count, size = count + 1, size + entry.size
            self._on_event(Hashing(count, size))
            now = self._now(self._unknown(cache), cache)
            for entry in self._files():
                earlier = self._earlier(entry, cache)
                digest = next(now) if earlier is None else earlier
                if digest is not None:
                    yield Hashed(
                        entry, digest, Verification.DIGEST if earlier is None else Verification.RECORDED
                    )

    def _files(self) -> Iterator[Entry]:
        return (entry for entry in self.tree.files if entry.path != self._wanted.leave_out)

    def _earlier(self, entry: Entry, cache: DigestCache) -> str | None:
        """Return the recorded digest if recorded ones may be used."""
        return (entry.digest or cache.find([entry])) if self._wanted.recorded else None

    def _unknown(self, cache: DigestCache) -> Iterator[Entry]:
        return (entry for entry in self._files() if self._earlier(entry, cache) is None)

    def _now(self, files: Iterable[Entry], cache: DigestCache) -> Iterator[str | None]:
        """Hash these files at the site, with read-ahead; None for an unreadable one."""
        for entry, digest, problem in self.tree.digests(files):
            if digest is None:
                self._fail(entry.path, problem)
            else:
                cache.add([entry], digest)
            self._on_event(Carried(entry.size))
            yield digest


@dataclass(slots=True)
class Usage:
    """The sizes at and below `path`; b"" is the whole. Links and special files count as files of 0 bytes."""

    path: bytes
    files: int = 0
    folders: int = 0
    bytes: int = 0

    def add(self, inner: Usage) -> None:
        """Add the counts of a folder in it."""
        self.files += inner.files
        self.folders += inner.folders
        self.bytes += inner.bytes


def usages(listed: Iterable[Entry], depth: int) -> Iterator[Usage]:
    """Yield the folders down to `depth`, each after those in it, and the whole last.

    `listed` is in canonical order. A folder that exists only as a prefix of names (in an object store)
    counts, too.
    """
    held = [Usage(b"")]
    for entry in listed:
        while len(held) > 1 and not entry.order.startswith(held[-1].path + b"/"):
            yield _let_go(held)
        folders = entry.order.split(b"/")[:-1]
        levels = range(len(held), min(depth, len(folders)) + 1)
        held.extend(Usage(b"/".join(folders[:level])) for level in levels)
        held[-1].folders += entry.kind is Kind.FOLDER
        if entry.kind is not Kind.FOLDER:
            held[-1].files += 1
            held[-1].bytes += entry.size
    while len(held) > 1:
        yield _let_go(held)
    yield held[0]


def _let_go(held: list[Usage]) -> Usage:
    done = held.pop()
    held[-1].add(done)
    return done
