"""Write files with concurrent requests to a server, and stream large ones while they arrive."""

from __future__ import annotations

import hashlib
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import closing

from hibali.errors import HibaliError
from hibali.http.client import Bytes
from transfers.model.entry import Kind, Verification
from transfers.model.store import problem_of, share_in_flight
from transfers.model.units import Committed, Item, Payload, Problem
from transfers.pipeline.batches import Jobs
from transfers.stores.server.lease import Lease, NoLease

_File = tuple[Item, memoryview, str]  # with its content and digest


class RequestWriter(ABC):
    """One `write` call, used once: a thread reads the source, and jobs of a pool send the files.

    `bytes` counts the file bytes sent and read back.
    """

    cannot_store: Problem  # for symlinks and special files

    def __init__(self, holder: Lease | NoLease, pool: Executor, most_jobs: int) -> None:
        self._holder = holder
        self._most_jobs = most_jobs
        self._jobs: Jobs[Committed] = Jobs(pool, most_jobs=most_jobs, most_bytes=share_in_flight())
        self._counting = threading.Lock()
        self.bytes = 0

    def run(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store.write."""
        with closing(self._jobs.run(lambda: self._feed(payloads))) as found:
            for results in found:
                # a success last, if there is one: it is written to the journal
                results.sort(key=lambda one: one.problem is None)
                yield from (one._replace(more=True) for one in results[:-1])
                yield results[-1]

    def _feed(self, payloads: Iterable[Payload]) -> None:
        """Read the source and submit the writes; runs in its own thread."""
        self._holder.check(now=True)
        for payload in payloads:
            if self._jobs.stopped:
                return
            self._holder.check()
            if payload.unit.segment:
                self._add_segment(payload)
            else:
                self._add_pack(payload)

    def _add_pack(self, payload: Payload) -> None:
        start = 0
        view = memoryview(payload.data)
        files: list[_File] = []
        for position, item in enumerate(payload.unit.items):
            content = view[start : start + payload.sizes[position]]
            start += payload.sizes[position]
            problem = payload.problems.get(position)
            if problem is None and item.entry.kind in {Kind.LINK, Kind.SPECIAL}:
                problem = self.cannot_store
            if problem is not None:
                self._fail(item, problem)
            elif item.entry.kind is Kind.FOLDER:
                self._make_folder(item)  # at once: later items may be inside it
            else:
                files.append((item, content, payload.digests[position] or ""))
        # A job for each of many small files would cost as much as its request.
        step = max(1, -(-len(files) // self._most_jobs))
        for first in range(0, len(files), step):
            some = files[first : first + step]
            self._jobs.submit(sum(len(content) for _, content, _ in some), self._write_some, some)

    def _write_some(self, files: list[_File]) -> None:
        for file in files:
            if self._jobs.stopped:
                return
            self._write_whole(*file)

    @abstractmethod
    def _add_segment(self, payload: Payload) -> None:
        """Process the next segment of a file; called in order, without gaps."""

    @abstractmethod
    def _make_folder(self, item: Item) -> None:
        """Make a folder and report it."""

    @abstractmethod
    def _write_whole(self, item: Item, content: memoryview, digest: str) -> None:
        """Check the hash of a whole file, write it and report it; runs in a thread of the pool."""

    def _fail(self, item: Item, problem: Problem) -> None:
        self._jobs.report(Committed(item, None, Verification.NONE, problem=problem))

    def _count(self, size: int) -> None:
        with self._counting:
            self.bytes += size


_PIECES = 2  # chunks of one large file that wait to be sent
_WAIT_SECONDS = 0.2
DIFFERS = Problem("corrupt", "the received data differs from the source", retryable=True)
EARLIER = Problem("earlier-segment", "an earlier segment of this file failed", retryable=True)


class Refused(Exception):  # noqa: N818  # one item's problem on its way up
    """The problem of one item that will not be committed."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code)
        self.problem = problem


class UploadAbandonedError(Exception):
    """The stream of a large file ended before its last chunk."""


class UploadRestartedError(Exception):
    """The source restarts this file; the first attempt is not reported."""


class StreamedFile:
    """A file that arrives in segments, which another thread sends."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.offset = 0
        self.digest: str | None = None
        self.problem: Problem | None = None
        self.restarted = False  # the source restarts the file
        self.over = threading.Event()  # the sender accepts no more chunks
        self.ended = threading.Event()  # the sender has finished and removed its partial file
        self._summed = hashlib.sha256()
        self._pieces: queue.Queue[Bytes | None] = queue.Queue(_PIECES)

    def add(self, content: Bytes | None, stopped: Callable[[], bool]) -> None:
        """Queue a chunk when the queue has space, None as the end; discard it if the sender has stopped."""
        if content is not None:
            self._summed.update(content)
            self.offset += len(content)
        while not (self.over.is_set() or stopped()):
            try:
                self._pieces.put(content, timeout=_WAIT_SECONDS)
                return
            except queue.Full:
                continue

    def pieces(self, stopped: Callable[[], bool]) -> Iterator[Bytes]:
        """Yield the chunks, the last one only after the digest matches. Raise `UploadAbandonedError` otherwise."""
        held: Bytes | None = None
        while (piece := self._next(stopped)) is not None:
            if held is not None:
                yield held
            held = piece
        if self.digest is None or self.offset != self.item.entry.size:
            raise UploadAbandonedError
        if self._summed.hexdigest() != self.digest:
            self.problem = DIFFERS
            raise UploadAbandonedError
        if held is not None:
            yield held

    def _next(self, stopped: Callable[[], bool]) -> Bytes | None:
        while True:
            try:
                return self._pieces.get(timeout=_WAIT_SECONDS)
            except queue.Empty:
                if stopped():
                    raise UploadAbandonedError from None


class StreamingWriter(RequestWriter):
    """A writer that sends each large file as one stream, whose segments arrive in order."""

    def __init__(self, holder: Lease | NoLease, pool: Executor, most_jobs: int) -> None:
        super().__init__(holder, pool, most_jobs)
        self._large: dict[int, StreamedFile] = {}
        self._failed: set[int] = set()  # files whose later segments report nothing

    def _stopped(self) -> bool:
        return self._jobs.stopped

    def _feed(self, payloads: Iterable[Payload]) -> None:
        try:
            super()._feed(payloads)
        finally:
            for large in self._large.values():
                large.add(None, self._stopped)

    def _guarded(self, item: Item, act: Callable[[], None]) -> None:
        """Call `act`; report a failure of this item, unless the file began again, which reports it then."""
        try:
            act()
        except UploadRestartedError:
            pass
        except Refused as refused:
            self._fail(item, refused.problem)
        except HibaliError as problem:
            self._fail(item, problem_of(problem))

    def _write_whole(self, item: Item, content: memoryview, digest: str) -> None:
        if hashlib.sha256(content).hexdigest() != digest or len(content) != item.entry.size:
            self._fail(item, DIFFERS)
            return
        self._guarded(item, lambda: self._put_small(item, content, digest))

    def _add_segment(self, payload: Payload) -> None:
        """Queue a file's segments (in order, without gaps) as one stream."""
        unit, item = payload.unit, payload.unit.items[0]
        problem = payload.problems.get(0)
        if unit.offset == 0:
            self._begin(item, unit.length, problem)
        large = self._large.get(item.number)
        if problem is None and (large is None or large.offset != unit.offset):
            problem = EARLIER
        if problem is not None:
            self._end(item, problem)
        elif large is not None:
            large.add(memoryview(payload.data), self._stopped)
            if unit.last:
                large.digest = payload.digests[0]
                del self._large[item.number]
                large.add(None, self._stopped)

    def _begin(self, item: Item, length: int, problem: Problem | None) -> None:
        self._failed.discard(item.number)
        earlier = self._large.pop(item.number, None)
        if earlier is not None:
            earlier.restarted = True
            earlier.add(None, self._stopped)
            while not (earlier.ended.wait(_WAIT_SECONDS) or self._jobs.stopped):
                pass  # both would use the same partial name
        if problem is None:
            large = self._large[item.number] = StreamedFile(item)
            self._jobs.submit(_PIECES * length, self._send, large)

    def _end(self, item: Item, problem: Problem) -> None:
        """End a file with a problem, which is reported once."""
        large = self._large.pop(item.number, None)
        if large is not None:
            large.problem = problem
            large.add(None, self._stopped)
        elif item.number not in self._failed:
            self._fail(item, problem)
        self._failed.add(item.number)

    def _send(self, large: StreamedFile) -> None:
        """Stream one large file; runs in a thread of the pool."""
        try:
            self._guarded(large.item, lambda: self._put_large(large))
        finally:
            large.over.set()
            large.ended.set()

    @abstractmethod
    def _put_small(self, item: Item, content: memoryview, digest: str) -> None:
        """Store and report a file in memory, whose digest was checked. Raise `Refused` and `HibaliError`."""

    @abstractmethod
    def _put_large(self, large: StreamedFile) -> None:
        """Store and report a file of which the segments arrive. Raise as `_put_small`, and `UploadRestartedError`."""
