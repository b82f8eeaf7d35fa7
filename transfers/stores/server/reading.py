"""Read files with concurrent requests to a server (S3, WebDAV, HTTPS, Globus)."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from hibali.errors import HibaliError, IncompleteError, RefusedError
from hibali.http.client import Bytes
from hibali.http.errors import FAILED
from hibali.text import printable
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import unsafe_component
from transfers.model.store import IN_FLIGHT_BYTES, Store, problem_of, share_in_flight
from transfers.model.units import Item, Payload, Problem, Unit
from transfers.pipeline.batches import fill_gaps


def changed(subject: str) -> IncompleteError:
    """Return the error for a file that changed since it was listed."""
    return IncompleteError("source-changed", "it changed while it was read", subject=subject)


class Got(NamedTuple):
    """Bytes of an object, the tag of its version, and its total size; `claim` is its ETag if the tag is another one.

    `checksum` is its MD5 or the id of its git blob, where the server is known to have that: other content is damaged. An ETag may be another hash.
    """

    content: Bytes
    etag: str
    size: int
    claim: str = ""
    checksum: str = ""


class Getter(Protocol):
    """A function that gets a file by its key or path, or `length` > 0 bytes from `offset`; see `Bulk.get`."""

    def __call__(self, key: bytes, /, *, etag: str | None, offset: int, length: int | None, most: int) -> Got:
        """Raise `IncompleteError("source-changed")` if the server sends more than `most` bytes."""


_UNITS_AHEAD = 64
_FAILURES = 3  # consecutive server failures that are reported for the object, not for the server
_ETAG_MD5 = re.compile(r"[0-9a-f]{32}")
_CHANGED = Problem("source-changed", "it changed while it was read")
_DAMAGED = Problem("corrupt", "its checksum is not the one that the source has recorded")

_JOBS = 32  # that share the small files of a pack: a job for each of them would cost as much as its request

_Part = tuple["Future[list[Got | Problem]]", int]  # a job, and the position of a file among its results


class _Frontier:
    """The streaming hash of a file, up to where it was read without a gap, unless its digest is recorded."""

    def __init__(self, got: Got, digest: str | None) -> None:
        self.etag = got.etag
        self._claim = got.checksum or got.claim or got.etag
        self._is_certain = bool(got.checksum)
        self._known = digest
        self._sha256: Any = None if digest else hashlib.sha256()
        self._claimed: Any = None
        if digest is None and _ETAG_MD5.fullmatch(self._claim):
            self._claimed = hashlib.md5(usedforsecurity=False)
        elif digest is None and self._is_certain:
            self._claimed = hashlib.sha1(b"blob %d\0" % got.size, usedforsecurity=False)

    def update(self, content: Bytes) -> None:
        if self._sha256 is not None:
            self._sha256.update(content)
        if self._claimed is not None:
            self._claimed.update(content)

    def end(self) -> tuple[str, Verification] | Problem:
        """Return digest and verification. The target compares a recorded digest with its own hash."""
        if self._known is not None:
            return self._known, Verification.RECORDED
        claimed = self._claimed is not None and self._claimed.hexdigest() == self._claim
        if self._is_certain and not claimed:
            return _DAMAGED
        return self._sha256.hexdigest(), Verification.CLAIMED if claimed else Verification.SIZE


class Reading:
    """A reader of files, ahead within a bounded window, in order; one `read` at a time."""

    def __init__(
        self,
        get: Getter,
        pool: Executor,
        key_of: Callable[[bytes], bytes],
        ahead_bytes: int = IN_FLIGHT_BYTES,
    ) -> None:
        """`key_of` returns the full key of a path below the root; `ahead_bytes` limits what is requested ahead."""
        self._getter = get
        self._pool = pool
        self._key_of = key_of
        self._ahead_bytes = ahead_bytes
        self._files: dict[int, _Frontier | Problem] = {}
        self._failures = 0
        self._over = False
        self.bytes = 0

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store.read."""
        self._files, self._over = {}, False
        coming = fill_gaps(units, lambda item: item.entry.digest is not None)
        pending: deque[tuple[Unit, bool, dict[int, _Part], int]] = deque()
        ahead = 0
        try:
            while True:
                while ahead < self._ahead_bytes and len(pending) < _UNITS_AHEAD:
                    unit, wanted = next(coming, (None, False))
                    if unit is None:
                        break
                    size = _bytes_of(unit)
                    pending.append((unit, wanted, self._submit(unit), size))
                    ahead += size
                if not pending:
                    return
                unit, wanted, parts, size = pending.popleft()
                ahead -= size
                payload = self._payload(unit, parts)
                if wanted:
                    yield payload
        finally:
            self._over = True
            for _, _, parts, _ in pending:
                for job, _ in parts.values():
                    job.cancel()

    def _submit(self, unit: Unit) -> dict[int, _Part]:
        """Start the jobs of a unit; return for each file, by its position, which one reads it."""
        offset, length = (unit.offset, unit.length) if unit.segment else (0, None)
        files = [at for at, item in enumerate(unit.items) if item.entry.kind is Kind.FILE]
        step = max(1, -(-len(files) // _JOBS))
        parts: dict[int, _Part] = {}
        for first in range(0, len(files), step):
            some = files[first : first + step]
            job = self._pool.submit(self._get_some, [unit.items[at].entry for at in some], offset, length)
            parts.update((at, (job, place)) for place, at in enumerate(some))
        return parts

    def _get_some(self, entries: list[Entry], offset: int, length: int | None) -> list[Got | Problem]:
        return [_CHANGED if self._over else self._get(entry, offset, length) for entry in entries]

    def _get(self, entry: Entry, offset: int, length: int | None) -> Got | Problem:
        try:
            key = self._key_of(entry.path)
            got = self._getter(key, etag=entry.etag, offset=offset, length=length, most=entry.size)
        except HibaliError as problem:
            self._failures += 1
            if problem.code == FAILED and self._failures <= _FAILURES:
                # This object may be damaged at the server; retries failed, but others may be intact.
                return Problem(problem.code, problem.message)
            return problem_of(problem, denied=True)
        self._failures = 0
        wanted = entry.size if length is None else length
        if got.size != entry.size or len(got.content) != wanted or (entry.etag and got.etag != entry.etag):
            return _CHANGED
        return got

    def _payload(self, unit: Unit, parts: dict[int, _Part]) -> Payload:
        contents: list[Bytes] = []
        payload = Payload(unit, b"", [], [], [])
        for position, item in enumerate(unit.items):
            content: Bytes = b""
            digest, verification = None, Verification.DIGEST
            if position in parts:
                job, place = parts[position]
                found = self._advance(unit, item, job.result()[place])
                if isinstance(found, Problem):
                    payload.problems[position] = found
                else:
                    content, digest, verification = found
            contents.append(content)
            payload.sizes.append(len(content))
            payload.digests.append(digest)
            payload.verifications.append(verification)
        payload.data = contents[0] if len(contents) == 1 else b"".join(contents)
        self.bytes += len(payload.data)
        return payload

    def _advance(
        self, unit: Unit, item: Item, got: Got | Problem
    ) -> tuple[Bytes, str | None, Verification] | Problem:
        """Process the next piece of a file; after a failure all later pieces fail."""
        known = self._files.pop(item.number, None)
        if isinstance(known, Problem):
            got = known
        if unit.piece:
            return got if isinstance(got, Problem) else (got.content, None, Verification.NONE)
        if isinstance(got, Problem):
            return self._remember(unit, item, got)
        if not isinstance(known, _Frontier):
            known = _Frontier(got, item.entry.digest)
        if got.etag != known.etag:
            return self._remember(unit, item, _CHANGED)
        known.update(got.content)
        if not unit.last:
            self._files[item.number] = known
            return got.content, None, Verification.NONE
        end = known.end()
        return end if isinstance(end, Problem) else (got.content, *end)

    def _remember(self, unit: Unit, item: Item, problem: Problem) -> Problem:
        if not unit.last:
            self._files[item.number] = problem
        return problem

    def digest(
        self, entries: Iterable[Entry], size_now: Callable[[Entry], int | None], piece: int
    ) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store.digest; `size_now` returns the current size of a changed file."""
        pending: deque[Entry] = deque()

        def units() -> Iterator[Unit]:
            for number, entry in enumerate(entries):
                pending.append(entry)
                yield from _units_of(number, entry, piece)

        for payload in self.read(units()):
            if not payload.unit.last:
                continue
            entry = pending.popleft()
            problem = payload.problems.get(0)
            if problem is None or problem.code != _CHANGED.code:
                yield entry, payload.digests[0], problem
                continue
            size = size_now(entry)
            if size is None:
                yield entry, None, Problem("vanished", "the file no longer exists")
                continue
            reread = Reading(self._getter, self._pool, self._key_of, self._ahead_bytes)
            *_, last = reread.read(_units_of(0, entry._replace(size=size), piece))
            self.bytes += reread.bytes
            yield entry, last.digests[0], last.problems.get(0)


def _units_of(number: int, entry: Entry, piece: int) -> Iterator[Unit]:
    """Yield the units of one file, without its listed ETag and digest."""
    item = Item(number, entry._replace(etag=None, digest=None))
    if entry.size <= piece:
        yield Unit((item,))
        return
    for offset in range(0, entry.size, piece):
        yield Unit((item,), offset, min(piece, entry.size - offset), segment=True)


def _bytes_of(unit: Unit) -> int:
    if unit.segment:
        return unit.length
    return sum(item.entry.size for item in unit.items if item.entry.kind is Kind.FILE)


class Counted(Protocol):
    """What writes files, and counts the bytes that it sent or read back."""

    bytes: int


class RequestStore(Store):
    """A store that reads files with single requests; `digest` must read the whole file from the server."""

    def __init__(
        self,
        get: Getter,
        key_of: Callable[[bytes], bytes],
        *,
        threads: int,
        name: str,
        ahead_bytes: int = IN_FLIGHT_BYTES,
    ) -> None:
        """`key_of` converts a path to the argument of `get`; `threads` limits concurrent requests."""
        self._get = get
        self._key_of = key_of
        self._ahead_bytes = share_in_flight(ahead_bytes)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._readings: list[Reading] = []
        self._writings: list[Counted] = []

    @property
    def wire_bytes(self) -> int:
        """See Store."""
        return sum(one.bytes for one in (*self._readings, *self._writings))

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        return self._reading().read(units)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        return self._reading().digest(entries, self._size_now, self.facts.segment_bytes)

    @abstractmethod
    def _size_now(self, entry: Entry) -> int | None:
        """Return the current size of a file, or None if it does not exist."""

    def _reading(self) -> Reading:
        reading = Reading(self._get, self._pool, self._key_of, self._ahead_bytes)
        self._readings.append(reading)
        return reading


class ServerReader(RequestStore):
    """A store of a folder below a URL, whose paths are bytes below the URL."""

    def __init__(
        self,
        get: Getter,
        root: bytes,
        subject: str,
        *,
        threads: int,
        name: str,
        ahead_bytes: int = IN_FLIGHT_BYTES,
    ) -> None:
        """`root` has no outer slashes; `subject` names the site in errors."""
        super().__init__(get, self._path, threads=threads, name=name, ahead_bytes=ahead_bytes)
        self.root_path = root
        self._subject = subject

    def _path(self, path: bytes) -> bytes:
        """Return a path below the site's URL. Raise `RefusedError` if it could climb or is ambiguous (S1)."""
        return self._safe(path, unsafe_component(path))

    def _safe(self, path: bytes, reason: str | None) -> bytes:
        if reason:
            raise RefusedError(
                "unsafe-name", f"{printable(path)} cannot be a path: {reason}", subject=self._subject
            )
        return self.root_path + b"/" + path if self.root_path and path else self.root_path or path
