"""Proving what stands at a place: two locations against each other, or one against what is on record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice

from hibali.errors import Exit, NotFoundError
from hibali.events import Event, Failed, Listener, ignore
from hibali.ledger import new_identifier
from hibali.locations import Location
from transfers.entry import Entry, Kind, Proof
from transfers.mover import Side
from transfers.places import open_store
from transfers.receipt import Receipt
from transfers.record import Expected, recorded_digests
from transfers.rules import Rules, Selector, selector
from transfers.single import SingleTarget
from transfers.store import ListingIncompleteError, Problem, Store

_Digested = tuple[Entry, str | None, Problem | None]

_AT_ONCE = 4096


def verify_location(location: Location, rules: Rules, tell: Listener = ignore) -> Receipt:
    """Hash everything at one place and compare it with the digests of its receipts, else of its manifest object.

    Raises `NotFoundError("nothing-recorded")` where neither is there.
    """
    with ExitStack() as stack:
        check = _Check(location.text, location.text, selector(rules), tell, stack)
        place = check.open(location)
        expected = recorded_digests(location, place.where)
        if not expected:
            expected = {
                e.path: Expected(e.digest, e.size) for e in place.entries if e.digest and e.kind is Kind.FILE
            }
        if not expected:
            raise NotFoundError(
                "nothing-recorded",
                "no digests are on record for this place",
                about=location.text,
                hint="Compare it with another place: hibali verify LOCATION LOCATION",
            )
        if place.single:
            one = expected.get(b"") or expected.get(location.name)
            expected = {location.name: one} if one is not None else {}
        else:
            expected = check.chosen(expected)
        check.judge(place, _digests(place), expected, complete=True)
        return check.end()


def verify_locations(first: Location, second: Location, rules: Rules, tell: Listener = ignore) -> Receipt:
    """Hash everything at both places and compare: the second has to hold what the first holds, and nothing else."""
    with ExitStack() as stack:
        check = _Check(first.text, second.text, selector(rules), tell, stack)
        ours, theirs = check.open(first), check.open(second)
        with ThreadPoolExecutor(1) as pool:
            # Each side hashes its own, both at once.
            there = pool.submit(lambda: list(_digests(theirs)))
            expected: dict[bytes, Expected] = {}
            for entry, digest, problem in _digests(ours):
                if digest is None:
                    check.fail(entry.path, problem)
                else:
                    expected[entry.path] = Expected(digest, entry.size)
            found = there.result()
        if ours.single and theirs.single:
            expected = dict(zip([entry.path for entry in theirs.entries], expected.values(), strict=False))
        else:
            check.compare_links(ours, theirs)
        check.judge(theirs, found, expected, complete=False)
        return check.end()


class _Place:
    """One side: what is listed there, and who hashes it."""

    def __init__(self, side: Side, where: bytes, entries: list[Entry], *, single: bool) -> None:
        self.side = side
        self.where = where
        self.entries = entries
        self.single = single

    def links(self) -> dict[bytes, bytes]:
        """Where each symlink points."""
        return {entry.path: entry.link for entry in self.entries if entry.kind is Kind.LINK}


class _Check:
    """One verification."""

    def __init__(
        self, source: str, target: str, selected: Selector, tell: Listener, stack: ExitStack
    ) -> None:
        self._tell_others = tell
        self._selected = selected
        self._stack = stack
        self._stores: list[Store] = []
        self._began = time.monotonic()
        self.receipt = Receipt(new_identifier(), "verify", source, target)

    def open(self, location: Location) -> _Place:
        """A place to be hashed: a folder, or one file. Raises `NotFoundError`."""
        store = self._open_store(location)
        found = store.stat()
        if found is None:
            raise NotFoundError("no-such-place", "there is nothing there", about=location.text)
        if found.kind is Kind.FILE:
            one = SingleTarget(self._open_store(location.parent), location.name)
            return _Place(one, store.where, list(one.list()), single=True)
        return _Place(store, store.where, self._entries(store), single=False)

    def _open_store(self, location: Location) -> Store:
        store = open_store(location, tell=self._tell_others)
        self._stack.callback(store.close)
        self._stores.append(store)
        return store

    def _entries(self, side: Side) -> list[Entry]:
        """Files and links; what could not be listed is a failure."""
        entries: list[Entry] = []
        try:
            for entry in side.list():
                if entry.kind in {Kind.FILE, Kind.LINK} and self._selected(entry):
                    entries.append(entry)  # noqa: PERF401  # what came before an incomplete end counts
        except ListingIncompleteError as problem:
            for path, found in problem.problems:
                self.fail(path, found)
        return entries

    def tell(self, event: Event) -> None:
        """Fold and pass on."""
        self.receipt.take(event)
        self._tell_others(event)

    def fail(self, path: bytes, problem: Problem | None) -> None:
        """Name one entry that could not be read."""
        reason = problem or Problem("unreadable", "it could not be read")
        self.tell(Failed(path, reason.code, reason.message))

    def chosen(self, expected: dict[bytes, Expected]) -> dict[bytes, Expected]:
        """Only what the filters take."""
        return {path: one for path, one in expected.items() if self._selected(Entry(path, Kind.FILE))}

    def compare_links(self, ours: _Place, theirs: _Place) -> None:
        """A symlink is what it points to, as text."""
        there = theirs.links()
        here = ours.links()
        for path in sorted(there.keys() - here.keys()):
            self.tell(Failed(path, "unexpected", "only the second place has it"))
        for path, link in here.items():
            if path not in there:
                self.tell(Failed(path, "missing", "the symlink is not there"))
            elif there[path] != link:
                self.tell(Failed(path, "differs", "the symlink points elsewhere"))

    def judge(
        self, place: _Place, digests: Iterable[_Digested], expected: dict[bytes, Expected], *, complete: bool
    ) -> None:
        """Judge what stands there by its digests. A file nobody expected is a difference, unless records of it may just be missing."""
        receipt = self.receipt
        files = {entry.path for entry in place.entries if entry.kind is Kind.FILE}
        receipt.files = len(files)
        receipt.bytes = sum(entry.size for entry in place.entries if entry.kind is Kind.FILE)
        for path in sorted(expected.keys() - files):
            self.tell(Failed(path, "missing", "it is not there"))
        for entry, digest, problem in digests:
            wanted = expected.get(entry.path)
            if wanted is None:
                if not complete:
                    self.tell(Failed(entry.path, "unexpected", "only the second place has it"))
            elif digest is None:
                self.fail(entry.path, problem)
            elif digest != wanted.digest:
                self.tell(
                    Failed(entry.path, "differs", f"its sha256 is {digest}, and {wanted.digest} was expected")
                )
            else:
                receipt.files_kept += 1
        proven = receipt.files_kept == len(files) and not receipt.files_failed
        receipt.proof_tree = Proof.DIGEST if proven else Proof.NONE

    def end(self) -> Receipt:
        """The receipt, judged."""
        receipt = self.receipt
        receipt.seconds = time.monotonic() - self._began
        receipt.bytes_sent = sum(store.wire_bytes for store in self._stores)
        receipt.logins = sum(store.logins for store in self._stores)
        receipt.exit = Exit.INCOMPLETE if receipt.files_failed else Exit.DONE
        return receipt


def _digests(place: _Place) -> Iterator[_Digested]:
    files: Iterable[Entry] = (entry for entry in place.entries if entry.kind is Kind.FILE)
    coming = iter(files)
    while some := list(islice(coming, _AT_ONCE)):
        yield from place.side.digest(some)
