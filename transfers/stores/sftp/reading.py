"""List and read over SFTP, many requests ahead."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from hibali.errors import IncompleteError
from hibali.text import printable
from transfers.agent import protocol
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.units import PACK_BYTES, PACK_ITEMS, SEGMENT_BYTES, WINDOW_BYTES, Payload, Problem, Unit
from transfers.pipeline.batches import fill_gaps
from transfers.stores.server.listing import ServerListing
from transfers.stores.sftp import channel
from transfers.stores.sftp.channel import Attributes, Pending, StatusError
from transfers.stores.sftp.client import Client, entry_of, is_unchanged, kind_of, listed_names, problem_of
from transfers.stores.sftp.lock import Own
from transfers.stores.sftp.paths import SafePaths

_FOLDERS_AHEAD = 32
_THREADS = 8

_Found = tuple[list[Entry], list[tuple[bytes, Problem]]]


class Listing(ServerListing):
    """A listing that requests the next folders in threads."""

    def __init__(self, client: Client, safe_paths: SafePaths, own: Own, *, shallow: bool = False) -> None:
        super().__init__(shallow=shallow)
        self._client = client
        self._safe_paths = safe_paths
        self._own = own
        self._ahead: dict[bytes, Future[_Found]] = {}

    def __iter__(self) -> Iterator[Entry]:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="list")
        try:
            yield from super().__iter__()
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _children(self, folder: bytes) -> list[Entry]:
        """Return a folder's entries, sorted, without own names; start listing its subfolders."""
        future = self._ahead.pop(folder, None)
        found, problems = future.result() if future is not None else self._list_folder(folder)
        self.problems += problems
        if any(entry.path.rpartition(b"/")[2] == protocol.OWN_FOLDER for entry in found):
            self._seeds += self._own.seeds(folder)
            if folder:
                self.own_folders.append(folder)
        entries = [entry for entry in found if not self._is_own(folder, entry.path)]
        entries.sort(key=lambda entry: entry.order)
        if not self._shallow:
            for entry in entries:
                if len(self._ahead) >= _FOLDERS_AHEAD:
                    break
                if entry.kind is Kind.FOLDER:
                    self._ahead[entry.path] = self._pool.submit(self._list_folder, entry.path)
        return entries

    def _list_folder(self, folder: bytes) -> _Found:
        """List one folder; runs in threads of the pool."""
        try:
            listed = listed_names(self._client, self._safe_paths.full(folder).rstrip(b"/") or b"/")
        except StatusError as problem:
            if problem.code == channel.NO_SUCH_FILE and folder:
                return [], []  # removed meanwhile, so it has no entries
            return [], [(folder, problem_of(problem))]
        seen: set[bytes] = set()
        for one in listed:
            if not one.name or b"/" in one.name or b"\0" in one.name or one.name in seen:
                raise self._violation(folder, one.name)
            seen.add(one.name)
        prefix = folder + b"/" if folder else b""
        entries = [entry_of(prefix + one.name, one.attributes) for one in listed]
        # Some servers send the attributes of a link's target or none: stat all but plain files and folders.
        plain = [entry for entry in entries if entry.kind in {Kind.FILE, Kind.FOLDER}]
        other = [entry.path for entry in entries if entry.kind not in {Kind.FILE, Kind.FOLDER}]
        found, problems = self._stat_exactly(other)
        return plain + found, problems

    def _stat_exactly(self, paths: list[bytes]) -> _Found:
        client, full = self._client, self._safe_paths.full
        requests = [
            (path, client.request_stat(full(path)), client.request_readlink(full(path))) for path in paths
        ]
        found: list[Entry] = []
        problems: list[tuple[bytes, Problem]] = []
        for path, stat_reply, link_reply in requests:
            try:
                attributes = client.attributes_of(stat_reply)
                link = b""
                if kind_of(attributes) is Kind.LINK:
                    (named,) = client.names_of(link_reply)
                    link = named.name
                found.append(entry_of(path, attributes, link))
            except StatusError as problem:
                if problem.code != channel.NO_SUCH_FILE:
                    problems.append((path, problem_of(problem)))
            except ValueError:
                problems.append((path, Problem("failed", "the SFTP server sent no target of a symlink")))
        return found, problems

    def _violation(self, folder: bytes, name: bytes) -> IncompleteError:
        return IncompleteError(
            "listing-violation",
            f"the listing cannot be trusted: the name {printable(name)} is invalid or listed twice",
            subject=f"{self._client.subject}:{printable(folder)}",
            hint="Nothing was deleted. If it happens again, report it to the site.",
        )


Value = TypeVar("Value")
Result = TypeVar("Result")


def in_order(
    things: Iterable[Value],
    do: Callable[[Value], Result],
    *,
    most_jobs: int,
    weigh: Callable[[Value], int] = lambda _: 0,
    most: int = 0,
) -> Iterator[tuple[Value, Result]]:
    """Yield each thing with its result of `do`, in order; `most_jobs` or `most` weight run at a time."""
    coming = iter(things)
    under_way: deque[tuple[Value, int, Future[Result]]] = deque()
    held = 0
    pool = ThreadPoolExecutor(most_jobs, thread_name_prefix="sftp")
    try:
        while True:
            while len(under_way) < most_jobs and held <= most:
                thing = next(coming, None)
                if thing is None:
                    break
                weight = weigh(thing)
                held += weight
                under_way.append((thing, weight, pool.submit(do, thing)))
            if not under_way:
                return
            thing, weight, future = under_way.popleft()
            held -= weight
            yield thing, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_CHANGED = Problem("source-changed", "it changed after it was listed")
_MOST_JOBS = 4  # units or batches in flight


class _Sum(Protocol):
    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(slots=True)
class Opened:
    """A file open for reading with its attributes, or the problem that prevented it."""

    handle: bytes = b""
    found: Attributes = field(default_factory=Attributes)
    problem: Problem | None = None

    @property
    def size(self) -> int:
        """The file's size when it was opened."""
        return self.found.size or 0


class Files:
    """Reads of regular files below a root; thread-safe."""

    def __init__(self, client: Client, safe_paths: SafePaths, stopped: threading.Event | None = None) -> None:
        """Set the fields; `stopped` ends the hashing of large files early."""
        self._client = client
        self._safe_paths = safe_paths
        self._stopped = stopped or threading.Event()

    def open_all(self, paths: Sequence[bytes]) -> list[Opened]:
        """Open regular files; others get a problem, because opening a FIFO would block the server."""
        client = self._client
        wrong = self._safe_paths.parents(paths)
        opened = [Opened(problem=wrong.get(path)) for path in paths]
        good = [
            (one, self._safe_paths.full(path))
            for one, path in zip(opened, paths, strict=True)
            if not one.problem
        ]
        pending_stats = [client.request_stat(full) for _, full in good]
        for (one, _), pending in zip(good, pending_stats, strict=True):
            try:
                if kind_of(client.attributes_of(pending)) is not Kind.FILE:
                    one.problem = Problem("not-a-file", "it is not a regular file")
            except StatusError as problem:
                one.problem = problem_of(problem)
        good = [(one, full) for one, full in good if one.problem is None]
        for (one, _), pending in zip(
            good, [client.request_open(full, channel.FOR_READING) for _, full in good], strict=True
        ):
            try:
                one.handle = client.handle_of(pending)
            except StatusError as problem:
                one.problem = problem_of(problem)
        self._stat_opened([one for one, _ in good if one.handle])
        return opened

    def _stat_opened(self, opened: Sequence[Opened]) -> None:
        requests = [self._client.request_handle_stat(one.handle) for one in opened]
        for one, pending in zip(opened, requests, strict=True):
            try:
                one.found = self._client.attributes_of(pending)
            except StatusError as problem:
                one.problem = problem_of(problem)

    def close_all(self, opened: Iterable[Opened]) -> None:
        """Close the open files without waiting for the replies."""
        for one in opened:
            if one.handle:
                self._client.request_close(one.handle)
                one.handle = b""

    def request_range(self, opened: Opened, offset: int, length: int) -> list[tuple[int, int, Pending]]:
        """Send all requests for a range of an open file."""
        piece = self._client.read_bytes
        return [
            (at, size, self._client.request_read(opened.handle, at, size))
            for at in range(offset, offset + length, piece)
            if (size := min(piece, offset + length - at))
        ]

    def collect(self, opened: Opened, requests: Iterable[tuple[int, int, Pending]]) -> bytearray:
        """Return the bytes of a range, completing short reads; an error goes to `opened.problem`."""
        content = bytearray()
        for at, size, pending in requests:
            try:
                part = self._client.data_of(pending)
                while len(part) < size:
                    more_pending = self._client.request_read(opened.handle, at + len(part), size - len(part))
                    more = self._client.data_of(more_pending)
                    if not more:
                        break
                    part += more
            except StatusError as problem:
                opened.problem = opened.problem or problem_of(problem)
                continue
            if len(part) != size:
                opened.problem = opened.problem or _CHANGED
            content += part
        self._client.channel.data_bytes += len(content)
        return bytearray() if opened.problem else content

    def read_ranges(self, opened: Sequence[Opened], ranges: Sequence[tuple[int, int]]) -> list[bytearray]:
        """Read one range of each open file; a file that changed meanwhile gets a problem."""
        requests = [
            [] if one.problem else self.request_range(one, offset, length)
            for one, (offset, length) in zip(opened, ranges, strict=True)
        ]
        contents = [self.collect(one, some) for one, some in zip(opened, requests, strict=True)]
        before = [one.found for one in opened]
        self._stat_opened([one for one in opened if one.handle])
        for one, found in zip(opened, before, strict=True):
            if one.handle and one.found != found:
                one.problem = one.problem or _CHANGED
        return [
            bytearray() if one.problem else content for one, content in zip(opened, contents, strict=True)
        ]

    def hash_all(self, paths: Sequence[bytes]) -> list[tuple[str | None, Problem | None]]:
        """Return the sha256 of each file's content, read now."""
        opened = self.open_all(paths)
        try:
            small = [one for one in opened if one.size <= PACK_BYTES]
            contents = iter(self.read_ranges(small, [(0, one.size) for one in small]))
            digests: list[str | None] = []
            for one in opened:
                if one.size <= PACK_BYTES:
                    digests.append(hashlib.sha256(next(contents)).hexdigest())
                else:
                    digests.append(self._hash_large(one))
            return [
                (None if one.problem else digest, one.problem)
                for one, digest in zip(opened, digests, strict=True)
            ]
        finally:
            self.close_all(opened)

    def _hash_large(self, opened: Opened) -> str:
        summed = hashlib.sha256()
        before = opened.found
        size = opened.size

        def piece(at: int) -> list[tuple[int, int, Pending]]:
            return self.request_range(opened, at, min(PACK_BYTES, size - at)) if at < size else []

        requests = [piece(0), piece(PACK_BYTES)]
        for at in range(0, size, PACK_BYTES):
            requests.append(piece(at + 2 * PACK_BYTES))
            summed.update(self.collect(opened, requests.pop(0)))
            if self._stopped.is_set():
                opened.problem = opened.problem or Problem("not-tried", "it was interrupted")
            if opened.problem:
                break
        self._stat_opened([opened])
        if opened.found != before:
            opened.problem = opened.problem or _CHANGED
        return summed.hexdigest()


class Reading:
    """The reader of the store."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._sums: dict[int, tuple[int, _Sum]] = {}

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        for (unit, wanted), (opened, contents) in in_order(
            fill_gaps(units), self._fetch, most_jobs=_MOST_JOBS, weigh=_bytes_of, most=WINDOW_BYTES
        ):
            payload = self._payload(unit, opened, contents)
            if wanted:
                yield payload

    def _fetch(self, unit_and_wanted: tuple[Unit, bool]) -> tuple[list[Opened], list[bytearray]]:
        """Open and read one unit; runs in a thread of the pool."""
        unit, _ = unit_and_wanted
        items = [item for item in unit.items if item.entry.kind is Kind.FILE]
        opened = self._files.open_all([item.entry.path for item in items])
        try:
            for one, item in zip(opened, items, strict=True):
                if one.problem is None and not is_unchanged(item.entry, one.found):
                    one.problem = _CHANGED
            ranges = [(unit.offset, unit.length) if unit.segment else (0, item.entry.size) for item in items]
            return opened, self._files.read_ranges(opened, ranges)
        finally:
            self._files.close_all(opened)

    def _payload(self, unit: Unit, opened: list[Opened], contents: list[bytearray]) -> Payload:
        data = bytearray()
        sizes: list[int] = []
        digests: list[str | None] = []
        problems: dict[int, Problem] = {}
        read = iter(zip(opened, contents, strict=True))
        for position, item in enumerate(unit.items):
            if item.entry.kind is not Kind.FILE:
                sizes.append(0)
                digests.append(None)
                continue
            one, content = next(read)
            digest = self._digest(unit, content)
            if digest is None and unit.last and one.problem is None:
                one.problem = Problem(
                    "earlier-segment", "an earlier segment of this file failed", retryable=True
                )
            if one.problem is not None:
                problems[position] = one.problem
                content, digest = bytearray(), None
            sizes.append(len(content))
            digests.append(digest)
            if len(unit.items) == 1:
                data = content
            else:
                data += content
        return Payload(unit, data, sizes, digests, [Verification.DIGEST] * len(sizes), problems)

    def _digest(self, unit: Unit, content: bytearray) -> str | None:
        """Return the digest after a file's last segment, None before it."""
        if not unit.segment:
            return hashlib.sha256(content).hexdigest()
        if unit.piece:
            return None
        number = unit.items[0].number
        if unit.offset == 0:
            self._sums[number] = (0, hashlib.sha256())
        reached, summed = self._sums.get(number, (-1, hashlib.sha256()))
        if reached != unit.offset:
            return None
        summed.update(content)
        self._sums[number] = (reached + len(content), summed)
        return self._sums.pop(number)[1].hexdigest() if unit.last else None

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store: reads all bytes, because SFTP servers cannot hash."""
        for batch, results in in_order(
            _batches(entries),
            lambda some: self._files.hash_all([entry.path for entry in some]),
            most_jobs=_MOST_JOBS,
        ):
            for entry, (digest, problem) in zip(batch, results, strict=True):
                yield entry, digest, problem


def _bytes_of(unit_and_wanted: tuple[Unit, bool]) -> int:
    unit, _ = unit_and_wanted
    if unit.segment:
        return min(unit.length, SEGMENT_BYTES)
    return sum(item.entry.size for item in unit.items if item.entry.kind is Kind.FILE)


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Group small files into batches; a large file is its own batch."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        if batch and (size + entry.size > PACK_BYTES or len(batch) >= PACK_ITEMS):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.size
    if batch:
        yield batch
