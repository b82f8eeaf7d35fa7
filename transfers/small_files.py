"""Small files of a place by themselves: what lies there, their contents, and new ones where nothing stands yet."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Protocol, runtime_checkable

from hibali.errors import IncompleteError, NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location
from transfers.entry import Entry, Kind, Proof
from transfers.guarded import check_guarded
from transfers.packing import group_units
from transfers.places import open_store
from transfers.store import (
    PACK_BYTES,
    Item,
    Landed,
    ListingIncompleteError,
    Payload,
    Store,
    Unit,
    is_own_name,
    is_partial_name,
)

_MODE = 0o644
_STANDING = "target-changed"  # how every store calls it where something stands that nobody expected


class SmallFiles(Protocol):
    """The files of one place, each at most `PACK_BYTES`; they are never replaced and never removed."""

    def list(self) -> Iterator[Entry]:
        """Every regular file, in no order. Raises `NotFoundError` where the place itself is missing, and the errors of reaching it."""

    def read(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        """Their contents in the order asked, several asked for at once; raises `IncompleteError` where one changed since it was listed."""

    def writing(self) -> AbstractContextManager[None]:
        """Nobody else of hibali's writes there meanwhile, where the place can hold a lock; raises `TryLaterError("locked")`."""

    def create(self, contents: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Make each of them where nothing stands, durable, inside `writing`.

        Returns what stands instead, by path, where that is something else. Raises `IncompleteError`, `AccessError`, `RefusedError`.
        """

    def close(self) -> None:
        """Let go of what was opened; safe to call twice."""


@runtime_checkable
class KeepsSmallFiles(Protocol):
    """A store that has a better way to them than the one for whole trees."""

    def small_files(self) -> SmallFiles:
        """Those below its root; closing them closes the store."""


def open_small_files(location: Location, *, tell: Listener = ignore) -> SmallFiles:
    """The files at a location, connected; close them. Raises the errors of reaching a site."""
    store = open_store(location, tell=tell)
    if isinstance(store, KeepsSmallFiles):
        return store.small_files()
    return StoreFiles(store, location, tell)


def content_mark(entry: Entry) -> str:
    """What is another one when the content is: ETag, size, times and inode, as far as the store tells them."""
    told = (entry.etag or "", entry.inode, entry.size, entry.mtime_ns, entry.ctime_ns)
    return "-".join(str(part) for part in told)


class StoreFiles:
    """The SmallFiles protocol over any store (transfers.store.Store): what is made is guarded by the store's own lock."""

    def __init__(self, store: Store, location: Location, tell: Listener = ignore) -> None:
        self._store = store
        self._location = location
        self._tell = tell

    def list(self) -> Iterator[Entry]:
        """See SmallFiles. What cannot be looked into is passed over."""
        root = self._store.stat()
        if root is None:
            raise NotFoundError(
                "no-such-place",
                "there is nothing there",
                about=self._location.text,
                hint=f"Make it once: hibali mkdir {self._location.text}",
            )
        if root.kind is not Kind.FOLDER:
            raise UsageError("not-a-folder", "this is no folder", about=self._location.text)
        try:
            for entry in self._store.list():
                if entry.kind is Kind.FILE and not (is_own_name(entry.path) or is_partial_name(entry.path)):
                    yield entry
        except ListingIncompleteError:
            return

    def read(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        """See SmallFiles."""
        items = [Item(number, entry) for number, entry in enumerate(entries)]
        for payload in self._store.read(group_units(items, lambda: PACK_BYTES)):
            at = 0
            for position, (item, size) in enumerate(zip(payload.unit.items, payload.sizes, strict=True)):
                problem = payload.problems.get(position)
                if problem is not None:
                    raise IncompleteError(problem.code, problem.message, about=self._about(item.entry.path))
                yield bytes(payload.data[at : at + size])
                at += size

    @contextmanager
    def writing(self) -> Iterator[None]:
        """See SmallFiles."""
        if not self._store.facts.writable:
            raise RefusedError("read-only-site", "this site can only be read", about=self._location.text)
        check_guarded(self._location, self._store.where, self._tell)
        if not self._store.facts.locks:
            yield
            return
        try:
            lock = self._store.lock("publish")
        except RefusedError as refused:
            if refused.code != "not-private":
                raise
            raise TryLaterError(
                "locked",
                "another account is writing there, or was interrupted when it did",
                about=self._location.text,
                hint="Try again later. If it stays so, whoever was interrupted types their line again.",
            ) from None
        try:
            yield
        finally:
            lock.release()

    def create(self, contents: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """See SmallFiles."""
        if not contents:
            return {}
        changed = time.time_ns()
        items = [
            Item(number, Entry(path, Kind.FILE, len(content), changed, _MODE), exact=True)
            for number, (path, content) in enumerate(contents.items())
        ]
        with closing(self._store.write(_payloads(items, contents))) as answers:
            standing = [self._path_that_stands(answer) for answer in answers if answer.problem is not None]
        found = dict(zip(standing, self.read(self._entry_at(path) for path in standing), strict=True))
        return {path: content for path, content in found.items() if content != contents[path]}

    def _path_that_stands(self, answer: Landed) -> bytes:
        path, problem = answer.item.entry.path, answer.problem
        if problem is not None and problem.code != _STANDING:
            raise IncompleteError(problem.code, problem.message, about=self._about(path))
        return path

    def _entry_at(self, path: bytes) -> Entry:
        found = self._store.stat(path)
        if found is None or found.kind is not Kind.FILE or found.size > PACK_BYTES:
            raise IncompleteError(
                "in-the-way", "something that is no small file stands there", about=self._about(path)
            )
        return found

    def _about(self, path: bytes) -> str:
        return self._location.child(path).text

    def close(self) -> None:
        """See SmallFiles."""
        self._store.close()


def _payloads(items: Iterable[Item], contents: Mapping[bytes, bytes]) -> Iterator[Payload]:
    for unit in group_units(items, lambda: PACK_BYTES):
        yield _payload(unit, [contents[item.entry.path] for item in unit.items])


def _payload(unit: Unit, contents: list[bytes]) -> Payload:
    digests: list[str | None] = [hashlib.sha256(content).hexdigest() for content in contents]
    sizes = [len(content) for content in contents]
    return Payload(unit, b"".join(contents), sizes, digests, [Proof.DIGEST] * len(contents))
