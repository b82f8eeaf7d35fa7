"""A folder, here or at a site, as a store: everything is asked of an agent."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from hibali.errors import HibaliError, IncompleteError, NotFoundError
from hibali.text import printable
from transfers.agent import frames
from transfers.agent.lease import LEASE_SECONDS
from transfers.agent.records import Record, RecordError, unpack_records
from transfers.connection import Connection
from transfers.entry import Entry, Kind
from transfers.landing import LandingStream
from transfers.store import (
    WINDOW_BYTES,
    Facts,
    Landed,
    ListingIncompleteError,
    Payload,
    Problem,
    Space,
    Unit,
    unsafe_component,
)
from transfers.units import KIND_LETTERS, payload_of, unit_header

_KINDS = {b"f": Kind.FILE, b"d": Kind.FOLDER, b"l": Kind.LINK, b"s": Kind.SPECIAL}

_Value = TypeVar("_Value")

_UNITS_AHEAD = 32
_BATCH = 256
_BATCHES_AHEAD = 3


class PosixStore:
    """The Store protocol over one agent connection (transfers.store.Store)."""

    def __init__(self, connection: Connection, path: bytes, facts: Facts, *, logins: int = 0) -> None:
        """`path` is absolute, as the agent expanded it."""
        self.facts = facts
        self.where = path
        self.logins = logins
        self._connection = connection
        self._opened = False
        self._orphans: list[bytes] = []

    @property
    def wire_bytes(self) -> int:
        """File bytes that crossed a network; none where the agent runs here."""
        if self.facts.kind == "local":
            return 0
        return self._connection.data_bytes

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store; the root itself may be a symlink that the user named."""
        if path:
            try:
                self._open()
            except NotFoundError:
                return None
            answer = self._connection.ask("lstat", path=frames.text_of(path))
        else:
            answer = self._connection.ask("stat", path=frames.text_of(self.where))
        return one_entry(answer, self._connection)

    def _open(self, *, make: bool = False) -> None:
        if not self._opened:
            self._connection.ask("open", path=frames.text_of(self.where), make=make)
            self._opened = True

    def _open_folder(self) -> bool:
        """Open the root; False where it is a file. Raises `NotFoundError` also where a file stands above it."""
        try:
            self._open()
        except IncompleteError as problem:
            if problem.code != "not-a-folder":
                raise
            if self.stat() is not None:
                return False
            raise NotFoundError("vanished", "there is nothing of that name", about=problem.about) from None
        return True

    def make_root(self) -> None:
        """See Store."""
        self._open(make=True)

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store."""
        if not self._open_folder():
            return
        where = self._connection.where
        before = b""
        count = 0
        closing: dict[str, Any] = {}
        for frame in self._connection.ask_many("list", shallow=shallow):
            for entry in entries_of(frame.body, where):
                reason = unsafe_component(entry.path)
                if reason or not before < entry.order:
                    raise _violation(where, reason or "the order is wrong", entry.path)
                before = entry.order
                # The bare `.hibali/` folder is left out over there, with its count.
                count += 1
                yield entry
            closing = frame.header
        if closing.get("count") != count:
            raise _violation(where, f"{count} names came, {closing.get('count')} were announced", b"")
        with self._connection.understanding():
            self._orphans = [frames.bytes_of(text) for text in closing["orphans"]]
            problems = [(frames.bytes_of(text), problem_from(found)) for text, found in closing["problems"]]
        if problems:
            raise ListingIncompleteError(where, problems)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        self._open()
        coming = iter(units)
        asked: deque[tuple[int, Unit, int]] = deque()
        ahead = 0
        number = 0
        while True:
            while ahead < WINDOW_BYTES and len(asked) < _UNITS_AHEAD:
                unit = next(coming, None)
                if unit is None:
                    break
                number += 1
                size = unit_bytes(unit)
                self._connection.send(frames.UNIT, unit_header(unit, number))
                asked.append((number, unit, size))
                ahead += size
            if not asked:
                return
            expected, unit, size = asked.popleft()
            ahead -= size
            frame = self._connection.receive()
            if frame.kind != frames.DATA or frame.header.get("unit") != expected:
                raise self._connection.broken("answered with data that was not asked for")
            yield payload_of(unit, frame, self._connection)

    def write(self, payloads: Iterable[Payload]) -> Generator[Landed, None, None]:
        """See Store; the target must be locked."""
        self._open()
        self._purge()
        return LandingStream(self._connection).run(payloads)

    def _purge(self) -> None:
        """Remove what an interrupted operation left under partial names."""
        for some in _batches(self._orphans):
            self._connection.ask("purge", paths=[frames.text_of(path) for path in some])
        self._orphans = []

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store; the hashing happens at the site, some batches are asked ahead."""
        self._open()
        for batch in self._ahead(
            "digest", entries, lambda some: {"paths": [frames.text_of(e.path) for e in some]}
        ):
            for entry in batch:
                frame = self._connection.receive()
                if frame.kind != frames.REPLY:
                    raise self._connection.broken("ended a list of digests early")
                found = frame.header.get("problem")
                yield entry, frame.header.get("digest"), problem_from(found) if found else None
            if self._connection.receive().kind != frames.END:
                raise self._connection.broken("gave more digests than asked")

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; the target must be locked."""
        self._open()

        def items(some: tuple[Entry, ...]) -> dict[str, Any]:
            return {
                "items": [
                    {
                        "path": frames.text_of(e.path),
                        "kind": KIND_LETTERS[e.kind],
                        "size": e.size,
                        "mtime_ns": e.mtime_ns,
                    }
                    for e in some
                ]
            }

        for batch in self._ahead("remove", entries, items):
            answer = self._connection.receive()
            with self._connection.understanding():
                found = [answer.header["problems"].get(str(position)) for position in range(len(batch))]
            for entry, problem in zip(batch, found, strict=True):
                yield entry, None if problem is None else problem_from(problem)

    def _ahead(self, word: str, entries: Iterable[Entry], details: Any) -> Iterator[tuple[Entry, ...]]:
        """Ask in batches, a few of them before the first is answered: a long line must not wait for each."""
        coming = _batches(entries)
        asked: deque[tuple[Entry, ...]] = deque()
        while True:
            for batch in islice(coming, _BATCHES_AHEAD - len(asked)):
                self._connection.send(frames.REQUEST, {"do": word, **details(batch)})
                asked.append(batch)
            if not asked:
                return
            yield asked.popleft()

    def lock(self, operation: str) -> PosixLock:
        """See Store."""
        self._open()
        client = f"{os.environ.get('USER', os.geteuid())}@{socket.gethostname()} pid {os.getpid()}"
        self._connection.ask("lock", operation=operation, client=client, lease=LEASE_SECONDS)
        return PosixLock(self)

    def unlock(self) -> None:
        """Nothing partial is left when this is called with the connection alive: the journal goes too."""
        self._purge()
        self._connection.ask("unlock", clean=True)

    def space(self) -> Space:
        """See Store."""
        answer = self._connection.ask("space", path=frames.text_of(self.where))
        with self._connection.understanding():
            free = [answer.header[name] for name in ("bytes", "inodes")]
            if not all(value is None or (isinstance(value, int) and value >= 0) for value in free):
                raise ValueError
            return Space(free[0], free[1], {str(name): str(who) for name, who in answer.header["by"].items()})

    def close(self) -> None:
        """See Store."""
        self._connection.close()


class PosixLock:
    """The lease, held by the agent."""

    def __init__(self, store: PosixStore) -> None:
        self._store = store
        self._held = True

    def release(self) -> None:
        """See Lock; an agent that is gone has released it or its lease runs out."""
        if self._held:
            self._held = False
            try:
                self._store.unlock()
            except HibaliError:
                return


def _batches(values: Iterable[_Value]) -> Iterator[tuple[_Value, ...]]:
    """Tuples of up to `_BATCH` values (itertools.batched is younger than Python 3.11)."""
    coming = iter(values)
    while batch := tuple(islice(coming, _BATCH)):
        yield batch


def unit_bytes(unit: Unit) -> int:
    """How many bytes of files a unit carries."""
    return (
        unit.length
        if unit.segment
        else sum(item.entry.size for item in unit.items if item.entry.kind is Kind.FILE)
    )


def problem_from(found: Any) -> Problem:
    """The agent's [code, message, again]."""
    try:
        code, message, again = found
        return Problem(str(code), str(message), again=bool(again))
    except (TypeError, ValueError):
        return Problem("failed", "the agent gave no reason")


def one_entry(answer: frames.Frame, connection: Connection) -> Entry | None:
    """The answer to `stat` and `lstat`: what was found, or None."""
    with connection.understanding():
        found = bool(answer.header["found"])
    return next(entries_of(answer.body, connection.where), None) if found else None


def entries_of(packed: frames.Body, where: str) -> Iterator[Entry]:
    """The entries of one message; raises `IncompleteError` where they are malformed."""
    try:
        for record in unpack_records(bytes(packed)):
            yield _entry(record)
    except RecordError as problem:
        raise _violation(where, str(problem), b"") from None


def _entry(record: Record) -> Entry:
    return Entry(
        path=record.path,
        kind=_KINDS[record.kind],
        size=record.size,
        mtime_ns=record.mtime_ns,
        mode=record.mode,
        device=record.device,
        inode=record.inode,
        links=record.links,
        ctime_ns=record.ctime_ns,
        link=record.link,
        offline=bool(record.offline),
    )


def _violation(where: str, reason: str, path: bytes) -> IncompleteError:
    named = f"{where}:{printable(path)}" if path else where
    return IncompleteError(
        "listing-violation",
        f"the listing cannot be trusted: {reason}",
        about=named,
        hint="Nothing was deleted. Report it to the site if it happens again.",
    )
