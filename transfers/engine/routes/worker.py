"""Move batches of files between two stores that this process opens itself: a worker of a transfer on this machine.

The process that plans starts it (`transfers.engine.routes.workers`) and holds the target's lock. Both talk in pickled messages over
private pipes. A worker records nothing, so that there is one journal and one receipt.
"""

from __future__ import annotations

import contextlib
import os
import pickle  # noqa: TID251  # only between processes of hibali, over private pipes
import queue
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from hibali.cancellation import Cancellation, cancelled_by, in_this_context
from hibali.errors import CancelledError, HibaliError
from hibali.events import Carried, Event
from hibali.request_log import log_requests
from hibali.retry import Pace
from hibali.workers import as_worker
from transfers.engine.routes.stream import PacedPayloads, move_batches
from transfers.model.store import Source, Store
from transfers.model.units import Committed, Item, Problem
from transfers.pipeline.batches import packed_together
from transfers.stores.open_store import open_store
from transfers.stores.renamed_source import RenamedSource

if TYPE_CHECKING:
    from hibali.locations import Location
    from transfers.model.entry import Entry, Verification

_LENGTH = struct.Struct(">I")
_REPORT_SECONDS = 0.1  # between two reports of progress
_IDLE_SECONDS = 0.5
_END_SECONDS = 1.5  # to end in good order after the other process ended

Sent = tuple[
    int, "Entry", "Entry | None", bool, bool, "int | None", "bytes | None", "str | None"
]  # the fields of an Item
Answer = tuple[
    int, "str | None", "Verification", "str | None", "Problem | None", int
]  # of a Committed, by its item's number


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker needs to open both stores; `ticket` is of `Store.share_writing`, `rate` in bytes per second (0: no limit).

    `number` counts the workers of a transfer, which take turns at the logins of a site; there are `workers` of them. With `logs` they
    send a line (a str) for each request. With `renames` entries have other paths at the source.
    """

    source: Location
    target: Location
    ticket: Any
    attributes: bool
    rate: int
    number: int = 0
    workers: int = 1
    logs: bool = False
    renames: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has opened both stores; `agents` are the target's."""

    agents: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Answers:
    """Items that were committed or failed."""

    answers: list[Answer]


@dataclass(frozen=True, slots=True)
class Over:
    """The worker has ended, after `problem` if there is one; `left` says whether partial files may be left."""

    left: bool
    wire_bytes: int
    slowed: bool
    problem: HibaliError | None


class Messages:
    """Messages over two pipes; each direction is for one thread at a time."""

    def __init__(self, reading: BinaryIO, writing: BinaryIO) -> None:
        self._reading = reading
        self._writing = writing
        self._guard = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message. Raises OSError after the other process ended."""
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._guard:
            view = memoryview(_LENGTH.pack(len(content)) + content)
            while view:
                view = view[self._writing.write(view) :]

    def receive(self) -> Any:
        """Return the next message. Raises EOFError after the other process ended."""
        return pickle.loads(self._read(_LENGTH.unpack(self._read(_LENGTH.size))[0]))  # noqa: S301  # of hibali's own process

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            chunk = self._reading.read(size - len(found))
            if not chunk:
                raise EOFError
            found += chunk
        return bytes(found)


def sent_item(item: Item) -> Sent:
    """Return an item as it is sent: a tuple is pickled several times faster."""
    return (
        item.number,
        item.entry,
        item.replaces,
        item.clear,
        item.exact,
        item.permissions,
        item.attributes,
        item.recorded,
    )


class _Worker:
    """One worker: a thread receives batches, the main thread moves them."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._cancellation = Cancellation()
        self._batches: queue.SimpleQueue[list[Sent] | None] = queue.SimpleQueue()
        self._unanswered: set[int] = set()
        self._answers: list[Answer] = []
        self._guard = threading.Lock()
        self._carried = 0
        self._reported = time.monotonic()

    def run(self) -> None:
        """Work until there are no more batches, or the other process ends."""
        job: Job = self._messages.receive()
        if job.logs:
            log_requests(self._messages.send)
        threading.Thread(target=self._receive, name="batches", daemon=True).start()
        source: Store | None = None
        target: Store | None = None
        pace = Pace(job.rate)
        problem: HibaliError | None = None
        try:
            with ExitStack() as stack, cancelled_by(self._cancellation), as_worker(job.number, job.workers):
                source = stack.enter_context(closing(self._open(job.source)))
                target = stack.enter_context(closing(self._open(job.target)))
                if job.attributes:
                    source.include_attributes()
                    target.include_attributes()
                target.join(job.ticket)
                self._messages.send(Ready([dict(agent) for agent in target.agents]))
                reading = RenamedSource(source, ()) if job.renames else source
                self._move(reading, target, PacedPayloads(pace, self._note), packed_together(job.rate))
        except HibaliError as failure:
            problem = failure
        except Exception:  # noqa: BLE001  # a bug, reported as such by the other process
            problem = HibaliError(
                "worker-failed", f"a worker stopped because of a bug: {traceback.format_exc(-3)}"
            )
        if isinstance(problem, CancelledError):
            return
        self._report()
        stores = [store for store in (source, target) if store is not None]
        self._messages.send(
            Over(
                target is not None and target.left,
                sum(store.wire_bytes for store in stores),
                pace.slows,
                problem,
            )
        )

    def _open(self, location: Location) -> Store:
        return open_store(location, on_event=self._note)

    def _receive(self) -> None:
        """Receive batches; when the other process ended, end in good order, but soon."""
        with contextlib.suppress(EOFError, OSError):
            while (batch := self._messages.receive()) is not None:
                self._batches.put(batch)
            self._batches.put(None)
            self._messages.receive()
        timer = threading.Timer(_END_SECONDS, os._exit, (1,))
        timer.daemon = True
        timer.start()
        self._batches.put(None)
        self._cancellation.cancel()

    def _move(self, source: Source, target: Store, payloads: PacedPayloads, together: int) -> None:
        """Move all batches. Where none comes for a moment, a transfer ends: it could not note that a store failed."""
        while (batch := self._batches.get()) is not None:
            with closing(move_batches(source, target, self._from(batch), payloads, together)) as results:
                for committed in results:
                    self._answer(committed)

    def _from(self, batch: list[Sent] | None) -> Iterator[list[Item]]:
        """Yield this batch and those that follow soon."""
        while batch is not None:
            items = [Item(*fields) for fields in batch]
            with self._guard:
                self._unanswered.update(item.number for item in items)
            yield items
            try:
                batch = self._batches.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                return
        self._batches.put(None)

    def _answer(self, result: Committed) -> None:
        """Keep a result until all of its batch are there, at most for a moment."""
        number = result.item.number
        self._answers.append(
            (number, result.digest, result.verification, result.etag, result.problem, result.inode)
        )
        with self._guard:
            self._unanswered.discard(number)
            idle = not self._unanswered
        if idle or len(self._answers) >= 256 or time.monotonic() - self._reported > _REPORT_SECONDS:
            self._report()

    def _report(self) -> None:
        answers, self._answers = self._answers, []
        if answers:
            self._messages.send(Answers(answers))
        self._reported = time.monotonic()

    def _note(self, event: Event) -> None:
        """Pass an event on; bytes are added up."""
        if isinstance(event, Carried):
            with self._guard:
                self._carried += event.bytes
                if time.monotonic() - self._reported < _REPORT_SECONDS:
                    return
                event, self._carried = Carried(self._carried), 0
        with contextlib.suppress(OSError):
            self._messages.send(event)


def main() -> None:
    """Be a worker: messages come by standard input, and go by what was standard output."""
    reading = os.fdopen(os.dup(0), "rb", buffering=0)
    writing = os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "r+b", buffering=0) as nothing:  # noqa: PTH123  # for descriptors
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    with contextlib.suppress(EOFError, BrokenPipeError):
        in_this_context(_Worker(Messages(reading, writing)).run)()
    sys.stderr.flush()
    os._exit(0)
