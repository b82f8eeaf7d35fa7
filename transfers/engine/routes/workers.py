"""Move files by several processes of this machine, each with stores of its own (transfers.engine.routes.worker)."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Any

from hibali.cancellation import in_this_context
from hibali.cores import is_shared_machine, usable_cores
from hibali.errors import HibaliError, TryLaterError, is_lost
from hibali.events import Carried, Event, Listener, Noted
from hibali.locations import Location
from hibali.request_log import is_logging, pass_line
from hibali.subprocesses import Process
from hibali.text import printable
from transfers.engine.endpoints import Endpoints
from transfers.engine.request import Request
from transfers.engine.routes.stream import StreamRoute
from transfers.engine.routes.worker import Answers, Job, Messages, Over, Ready, sent_item
from transfers.history.journal import Recorder
from transfers.model.store import SharedWriting, Source, Store, StoreView
from transfers.model.units import PACK_BYTES, Committed, Item
from transfers.pipeline.batches import group_units
from transfers.planning.planner import TransferPlan
from transfers.stores.renamed_source import RenamedSource

_CORES_PER_WORKER = 2  # it and its agents keep about two busy
_WORKERS_PER_LOGIN = 2  # one process of ssh encrypts for all of a login
_MOST_UNASKED = 8  # with their agents they stay below 400 MB
_MOST_AT_A_BUCKET = 4  # of about 90 MB each
_MOST_AMONG_OTHERS = 4
_FILES_PER_WORKER = 2_500  # what one moves while another one starts, about half a second
_BYTES_PER_WORKER = 256 * 1024 * 1024
_BATCHES_AHEAD = 2  # so that a worker reads while it waits for an answer
_MOST_REPLACED = 3
_END_SECONDS = 1.8
_PROGRAM = "from transfers.engine.routes.worker import main; main()"  # so that its messages are of the module that both import


def count_workers(files: int, size: int, most: int) -> int:
    """Return how many workers `files` files of `size` bytes are worth; 1: this process moves them itself."""
    return max(1, min(most, files // _FILES_PER_WORKER + size // _BYTES_PER_WORKER))


def suitable_workers(request: Request) -> int:
    """Return the most workers of a transfer without a requested number: by the cores of this machine, the logins and the stores."""
    most = min(_MOST_UNASKED, usable_cores() // _CORES_PER_WORKER)
    if most > _MOST_AMONG_OTHERS and is_shared_machine():
        most = _MOST_AMONG_OTHERS
    if request.source.bucket is not None or request.target.bucket is not None:
        most = min(most, _MOST_AT_A_BUCKET)
    sites = request.source.site, request.target.site
    return min([most, *(_WORKERS_PER_LOGIN * site.ssh.logins for site in sites if site.ssh is not None)])


def share_of(job: Job, count: int) -> Job:
    """Return the job of one of `count` workers: its share of the rate, of the connections, and of the bytes in flight."""

    def shared(location: Location) -> Location:
        limits = location.site.limits
        connections = max(1, limits.connections // count) if limits.connections else 0
        limits = replace(limits, bandwidth=limits.bandwidth // count, connections=connections)
        return replace(location, site=replace(location.site, limits=limits))

    ends = shared(job.source), shared(job.target)
    return replace(job, source=ends[0], target=ends[1], rate=job.rate // count, workers=count)


class WorkersRoute(StreamRoute):
    """Move large transfers by workers, and the others, and what is sent again, in this process."""

    def __init__(self, job: Job, most: int, rate: int, on_event: Listener, *, asked: bool = True) -> None:
        """`job` is without a ticket, and has the whole rate. Unless workers were `asked` for, none start beside further channels."""
        super().__init__(rate, on_event)
        self._job = job
        self._most = most
        self._asked = asked
        self._count = 1
        self._slowed = False

    @property
    def slowed(self) -> bool:
        """See Route."""
        return self._slowed or super().slowed

    def open(self, plan: TransferPlan) -> None:
        """Decide on the number of workers; a name that gets another kind of entry has to wait for those before it."""
        if not plan.kinds_changed:
            self._count = count_workers(plan.moves.count, plan.bytes_to_move, self._most)

    def _transfer(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        count, self._count = self._count, 1
        # Over a long line several channels of this process fill it; those of workers would need more sessions than an sshd allows.
        is_far = source.several_channels or target.several_channels
        if count == 1 or (is_far and not self._asked):
            yield from super()._transfer(source, target, items)
            return
        job = share_of(self._job, count)
        writing = target.share_writing(count + _MOST_REPLACED)
        workers = _Workers(job, writing, count, self._on_event)
        batches = in_batches(self._full.until(items), self._together)
        try:
            with closing(workers.run(batches)) as results:
                for committed in results:
                    self._full.note(committed.problem)
                    writing.committed(committed)
                    yield committed
        finally:
            self.bytes_sent += workers.wire_bytes
            self._slowed = self._slowed or workers.slowed
            writing.end(left=workers.left)
        yield from super()._transfer(source, target, chain.from_iterable(chain(workers.again, batches)))


def open_route(endpoints: Endpoints, recorder: Recorder) -> WorkersRoute | None:
    """Return the route if both stores can be opened by several processes."""
    request, source, target = endpoints.request, endpoints.source, endpoints.target
    renames = isinstance(source, RenamedSource)
    if isinstance(source, RenamedSource):
        source = source.source
    if request.chosen is not None or not all(_is_shared(store) for store in (source, target)):
        return None
    asked = request.asked_workers
    most = asked or suitable_workers(request)
    if most < 2:
        return None
    rate, attributes = request.lowest_rate, request.rules.xattrs
    to = request.paced(replace(request.target, confined=request.rules.delete))
    job = Job(
        request.paced(request.source),
        to,
        None,
        attributes=attributes,
        rate=rate,
        logs=is_logging(),
        renames=renames,
    )
    return WorkersRoute(job, most, rate, recorder.on_event, asked=bool(asked))


def _is_shared(store: Source) -> bool:
    return isinstance(store, Store) and not isinstance(store, StoreView) and store.can(Store.share_writing)


def in_batches(items: Iterable[Item], together: int) -> Iterator[list[Item]]:
    """Group small files as they are packed, to at most `together` bytes; a larger file is alone."""
    whole = group_units(items, lambda: sys.maxsize, together=together)
    return (list(unit.items) for unit in whole)


class _Worker:
    """One process with the batches that it has not answered; `agents` are known once it has opened both stores."""

    def __init__(self, job: Job, messages: queue.SimpleQueue[tuple[_Worker, Any]]) -> None:
        self.ticket = job.ticket
        self.number = job.number
        self.agents: Sequence[dict[str, Any]] | None = None
        self.items: dict[int, Item] = {}
        self.over = False
        self._batches: deque[list[Item]] = deque()
        self._ends = False
        self._all = messages
        self._process = Process([sys.executable, "-P", "-c", _PROGRAM])
        self._messages = Messages(self._process.stdout, self._process.stdin)
        self._send(job)
        threading.Thread(target=in_this_context(self._listen), name="worker", daemon=True).start()

    def _listen(self) -> None:
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    message = self._messages.receive()
                    if isinstance(message, str):
                        pass_line(message)
                    else:
                        self._all.put((self, message))
        finally:
            self._all.put((self, None))

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # it has ended, which the other thread notes
            self._messages.send(message)

    @property
    def waiting(self) -> int:
        """The number of batches without all answers."""
        while self._batches and not any(item.number in self.items for item in self._batches[0]):
            self._batches.popleft()
        return len(self._batches)

    def give(self, batch: list[Item]) -> None:
        """Send a batch."""
        self._batches.append(batch)
        self.items.update((item.number, item) for item in batch)
        self._send([sent_item(item) for item in batch])

    def end_input(self) -> None:
        """Say that there are no more batches, once."""
        if not self._ends:
            self._ends = True
            self._send(None)

    def leave(self) -> None:
        """Let it end in good order, now."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def end(self, patience: float = _END_SECONDS) -> str:
        """Wait for its end, at most `patience` seconds; return what it printed last."""
        self._process.end(max(0.0, patience))
        return self._process.errors.decode("utf-8", "replace").strip()[-300:]


class _Workers:
    """The workers of one transfer; used once."""

    def __init__(self, job: Job, writing: SharedWriting, count: int, on_event: Listener) -> None:
        self._job = job
        self._writing = writing
        self._on_event = on_event
        self._tickets = deque(writing.tickets)
        self._messages: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
        self._workers = [self._start() for _ in range(count)]
        self.again: deque[list[Item]] = deque()  # batches of workers that have ended
        self._replaced = 0
        self.wire_bytes = 0
        self.slowed = False
        self.left = True

    def _start(self) -> _Worker:
        number = len(self._tickets)  # those that are left
        return _Worker(replace(self._job, ticket=self._tickets.popleft(), number=number), self._messages)

    def run(self, batches: Iterator[list[Item]]) -> Generator[Committed, None, None]:
        """Give every batch to the worker with the fewest, and yield all results."""
        left = False
        try:
            while self._deal(batches):
                worker, message = self._messages.get()
                if isinstance(message, Answers):
                    last = next((one[0] for one in reversed(message.answers) if one[4] is None), None)
                    for number, digest, verification, etag, problem, inode in message.answers:
                        item, more = worker.items.pop(number), number != last
                        yield Committed(item, digest, verification, etag, problem, more, inode)
                elif isinstance(message, Ready):
                    worker.agents = message.agents
                elif isinstance(message, Over):
                    worker.over = True
                    left = left or message.left
                    self.wire_bytes += message.wire_bytes
                    self.slowed = self.slowed or message.slowed
                    if message.problem is not None:
                        self._replace(worker, message.problem)
                elif isinstance(message, Carried):
                    self._on_event(replace(message, worker=len(self._writing.tickets) - worker.number + 1))
                elif message is not None:
                    self._on_event(message)
                elif not worker.over:
                    self._replace(worker, None)
            self.left = left
        finally:
            for worker in self._workers:
                worker.leave()
            ends = time.monotonic() + _END_SECONDS
            for worker in self._workers:
                worker.end(ends - time.monotonic())

    def _deal(self, batches: Iterator[list[Item]]) -> bool:
        """Give out what the workers have room for; return False once all have ended."""
        working = [worker for worker in self._workers if not worker.over]
        while working:
            worker = min(working, key=lambda one: one.waiting)
            if worker.waiting >= _BATCHES_AHEAD:
                return True
            batch = self.again.popleft() if self.again else next(batches, None)
            if batch is None:
                break
            worker.give(batch)
        if not any(worker.items for worker in working):  # a killed one's files are given to another
            for worker in working:
                worker.end_input()
        return bool(working)

    def _replace(self, worker: _Worker, problem: HibaliError | None) -> None:
        """Let another worker go on, after all that this one left running has ended.

        One that could not start is not replaced: the site may allow no further connection.
        """
        worker.over = True
        printed = worker.end()
        items = list(worker.items.values())
        worker.items.clear()
        self.again.extend(in_batches(items, PACK_BYTES))
        if worker.agents is None:
            reason = problem.message if problem is not None else _last_line(printed)
            self._on_event(Noted(f"{self._job.target.text}: fewer workers than possible: {reason}"))
            return
        self._replaced += 1
        if problem is not None and (not is_lost(problem) or self._replaced > _MOST_REPLACED):
            raise problem
        if self._replaced > _MOST_REPLACED:
            raise TryLaterError(
                "worker-lost",
                f"{self._replaced} workers ended: {_last_line(printed)}",
                subject=self._job.target.text,
                hint="Run the same command again to resume.",
            )
        self._writing.end_process(worker.agents, worker.ticket, items)
        self._workers.append(self._start())


def _last_line(printed: str) -> str:
    return printable(printed.splitlines()[-1]) if printed else "it was killed"
