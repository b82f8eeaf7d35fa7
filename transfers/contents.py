"""The bytes of one file at a place, from its start to its end."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol, runtime_checkable

from hibali.errors import IncompleteError, NotFoundError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location
from transfers.entry import Entry, Kind
from transfers.packing import group_units
from transfers.places import open_store
from transfers.single import SingleSource
from transfers.store import Item, Payload, Store


@runtime_checkable
class Resolves(Protocol):
    """A store whose site has symlinks above and at what was named."""

    def resolved(self, paths: Sequence[bytes] = ()) -> list[bytes]:
        """Where the root and these paths are without symlinks, as far as anything stands there.

        They are absolute, or begin with `~/` or `$NAME`; b"" for one whose variable is not set there.
        """


@runtime_checkable
class Guarded(Protocol):
    """A store whose site has symlinks that other accounts may have made."""

    def check_trusted(self) -> None:
        """Raise `RefusedError` where the path of the root leads through a symlink of another account below a configured root."""


def contents(
    location: Location, *, recall: bool = False, tell: Listener = ignore
) -> Generator[bytes | bytearray | memoryview, None, None]:
    """The bytes of a regular file, streaming. A symlink is followed.

    Raises `NotFoundError`, `UsageError` for what is no file, and `IncompleteError` where the file changed meanwhile, is on tape
    (unless it is to be recalled), or the bytes that came are not those that the store vouches for. Bytes given out before are
    then of no use.
    """
    with ExitStack() as stack:

        def opened(at: Location) -> Store:
            store = open_store(at, tell=tell)
            stack.callback(store.close)
            return store

        real = _real_place(location, opened(location))
        source = SingleSource(opened(real.parent), real.name, real.name)
        entry = source.entry()
        if entry.offline and not recall:
            raise IncompleteError(
                "offline",
                "its bytes are on tape, or it is a single hole",
                about=location.text,
                hint="To have them read all the same: --recall",
            )
        if entry.kind is not Kind.FILE:
            raise UsageError("not-a-file", "this is no regular file", about=location.text)
        yield from _bytes_of(source, entry, location.text)


def _real_place(location: Location, store: Store) -> Location:
    """The place of the file itself, where a symlink was named."""
    found = store.stat()
    if found is None:
        raise NotFoundError("no-such-place", "there is nothing there", about=location.text)
    if found.kind is Kind.FOLDER:
        raise UsageError(
            "is-a-folder",
            "this is a folder",
            about=location.text,
            hint=f"Look with: hibali ls {location.text}",
        )
    if location.slash:
        raise UsageError("not-a-folder", "this is a file and PATH ends in a slash", about=location.text)
    if not isinstance(store, Resolves):
        return location
    if isinstance(store, Guarded):
        store.check_trusted()
    return replace(location, path=store.resolved()[0].decode("utf-8", "surrogateescape"))


def _bytes_of(source: SingleSource, entry: Entry, about: str) -> Iterator[bytes | bytearray | memoryview]:
    summed = hashlib.sha256()
    size = 0
    for payload in source.read(group_units([Item(0, entry)], lambda: source.facts.segment_bytes)):
        if 0 in payload.problems:
            problem = payload.problems[0]
            raise IncompleteError(problem.code, problem.message, about=about)
        summed.update(payload.data)
        size += len(payload.data)
        yield payload.data
        if payload.unit.last:
            _check(payload, size, summed.hexdigest(), about)


def _check(payload: Payload, size: int, digest: str, about: str) -> None:
    vouched = payload.digests[0]
    if size != payload.unit.items[0].entry.size or (vouched is not None and vouched != digest):
        raise IncompleteError(
            "differs",
            "the bytes that came are not those that the file is known to have",
            about=about,
            hint="Do not use what was written.",
        )
