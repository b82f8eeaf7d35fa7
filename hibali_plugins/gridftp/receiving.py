"""Receive large files over GridFTP: the target's agent prepares, checks and renames them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hibali.config.model import GridftpSettings
from hibali.errors import TryLaterError
from hibali.retry import stalled
from hibali_plugins.gridftp.process import (
    CopyProcess,
    DeclinedError,
    Direction,
    choose_parameters,
    distribute_pieces,
    explain,
)
from transfers.agent import protocol
from transfers.agent.protocol import partial_path
from transfers.engine.routes.stream import ProgressReport
from transfers.model.entry import Verification
from transfers.model.units import Committed, Item, Problem, Unit, problem_from
from transfers.pipeline.batches import item_header, payload_of, unit_header
from transfers.pipeline.receiving import PartialFiles
from transfers.remote.connection import Connection

Hashed = tuple[Item, str | None, Problem | None]

_AHEAD = 2  # files hashed concurrently


def hash_listed(
    connection: Connection, items: Sequence[Item], name: bytes | None, stopped: Callable[[], bool]
) -> Iterator[Hashed]:
    """Yield the sha256 or the problem of each file as it completes; `name` is a single file's source path.

    After `stopped`, no further file is started. Send the agent no other requests before this ends.
    """
    waiting: dict[int, Item] = {}
    for number, item in enumerate(items):
        if stopped():
            break
        unit = Unit((item,), 0, item.entry.size, segment=True)
        header = {**unit_header(unit, number), "digest": True}
        if name is not None:
            header["items"][0]["path"] = protocol.text_of(name)
        waiting[number] = item
        connection.send(protocol.UNIT, header)
        if len(waiting) >= _AHEAD:
            yield _next_hashed(connection, waiting)
    while waiting:
        yield _next_hashed(connection, waiting)


def _next_hashed(connection: Connection, waiting: dict[int, Item]) -> Hashed:
    frame = connection.receive()
    with connection.understanding():
        item = waiting.pop(int(frame.header["unit"]))
        # the reply has no bytes and, after a failure, no digest
        reply = payload_of(Unit((item,), item.entry.size, 0, segment=True), frame, connection)
    return item, reply.digests[0], reply.problems.get(0)


DECLINED = "gridftp-declined"
_MOST_OPEN_FILES = 64  # concurrent files: the agent keeps each of them open

# a CopyProcess with whether it has ended
_Event = protocol.Frame | tuple[CopyProcess, bool] | Hashed | BaseException | None


@dataclass(frozen=True, slots=True)
class GridftpTransfer:
    """The endpoints and the server of a transfer; with `up` it is the target's server.

    `source` is the connection to the agent that reads below `read_at`, an absolute path; `name` is a single
    file. `stall`: see CopyProcess.
    """

    server: GridftpSettings
    up: bool
    source: Connection
    read_at: bytes
    name: bytes | None
    round_trip: float
    progress: ProgressReport
    proxy: Path | None = None
    stall: float = 0.0


class GridftpReceiver:
    """A receiver for one transfer. Threads listen, copy and hash; the caller's thread does the rest."""

    fresh = False

    def __init__(self, control: Connection, root: bytes, transfer: GridftpTransfer) -> None:
        self._control = control
        self._root = root
        self._transfer = transfer
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._partial_files = PartialFiles()
        self._seed = b""
        self._units = 0
        self._opening: set[int] = set()
        self._waiting: dict[int, Item] = {}
        self._digests: dict[int, str] = {}
        self._processes: set[CopyProcess] = set()
        self._hashing = False
        self._stopped = False
        self.declined: str | None = None  # the server's reason for refusing
        self.bytes = 0  # sent or received by the server
        self.logins = 0
        self.left = True
        self.over = False

    def run(self, items: Iterator[Item]) -> Generator[Committed, None, None]:
        """Yield the result of each item. Raise the server's errors; a later call resumes partial files."""
        self._begin()
        threading.Thread(target=self._listen, name="replies", daemon=True).start()
        try:
            while self.declined is None and (some := list(islice(items, _MOST_OPEN_FILES))):
                yield from self._carry(some)
            yield from map(self._not_carried, items)
            self._control.send(protocol.REQUEST, {"do": "finish_receiving"})
            while not self.over:
                self._process_event(self._events.get())
        finally:
            self._stopped = True
            self._kill()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def _begin(self) -> None:
        self._control.send(protocol.REQUEST, {"do": "start_receiving"})
        reply = next(self._control.replies_to("start_receiving"))
        with self._control.understanding():
            self._partial_files.read(reply.header)
            self._seed = bytes.fromhex(reply.header["ticket"]["seed"])

    def _listen(self) -> None:
        """Receive frames in a separate thread until END."""
        try:
            while True:
                frame = self._control.receive()
                self._events.put(frame)
                if frame.kind == protocol.END:
                    return
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that reads the results
            self._events.put(problem)

    def _carry(self, items: Sequence[Item]) -> Iterator[Committed]:
        """Transfer a batch of files, from opening them until each has a result."""
        self._waiting = {item.number: item for item in items}
        starts = [(item, self._partial_files.bytes_of(item)) for item in items]
        for item, start in starts:
            self._opening.add(self._units)
            header = {"unit": self._units, "item": item_header(item), "from": start}
            self._units += 1
            self._control.send(protocol.FILE, header)
        while self._opening:
            yield from self._process_event(self._events.get())
        starts = [(item, start) for item, start in starts if item.number in self._waiting]
        self._hashing = True
        ready = [item for item, _ in starts]
        threading.Thread(target=self._hash, args=(ready,), name="digests", daemon=True).start()
        size = sum(item.entry.size - start for item, start in starts)
        parameters = choose_parameters(size, self._transfer.round_trip, self._transfer.server.connections)
        for pieces in distribute_pieces(starts, parameters) if size else ():
            self._start(pieces, size)
        while self._waiting or self._processes or self._hashing:
            yield from self._process_event(self._events.get())
            if not self._waiting:
                self._kill()
            if self.declined is not None and not (self._processes or self._hashing):
                break
        for item in self._waiting.values():
            yield self._not_carried(item)

    def _not_carried(self, item: Item) -> Committed:
        return Committed(
            item, None, Verification.NONE, problem=Problem(DECLINED, self.declined or "", retryable=True)
        )

    def _start(self, pieces: Sequence[Unit], size: int) -> None:
        transfer = self._transfer
        parameters = choose_parameters(size, transfer.round_trip, transfer.server.connections)
        self.logins += 1
        self._processes.add(
            CopyProcess(
                pieces,
                self._direction(),
                parameters,
                lambda process: self._events.put((process, False)),
                lambda process: self._events.put((process, True)),
                transfer.stall,
            )
        )

    def _direction(self) -> Direction:
        transfer = self._transfer

        def read(unit: Unit) -> bytes:
            name = unit.items[0].entry.path if transfer.name is None else transfer.name
            return transfer.read_at.rstrip(b"/") + b"/" + name

        def written(unit: Unit) -> bytes:
            partial = partial_path(self._seed, unit.items[0].entry.path)
            return self._root.rstrip(b"/") + b"/" + partial

        here, there = (read, written) if transfer.up else (written, read)
        return Direction(transfer.server.url, transfer.server.paths, transfer.up, here, there, transfer.proxy)

    def _hash(self, items: Sequence[Item]) -> None:
        """Hash in a separate thread; the source's agent gets no other requests meanwhile."""
        try:
            for hashed in hash_listed(
                self._transfer.source, items, self._transfer.name, lambda: self._stopped
            ):
                self._events.put(hashed)
            self._events.put(None)
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that reads the results
            self._events.put(problem)

    def _process_event(self, event: _Event) -> list[Committed]:
        """Process one event of any thread; return results of items."""
        if isinstance(event, BaseException):
            raise event
        if event is None:
            self._hashing = False
            return []
        if isinstance(event, protocol.Frame):
            with self._control.understanding():
                return self._receive_frame(event)
        if len(event) == 2:
            self._report_written(event[0])
            if event[1]:
                self._receive_end(event[0])
            return []
        return self._receive_digest(*event)

    def _report_written(self, process: CopyProcess) -> None:
        """Report newly written pieces to the agent."""
        for unit in process.newly_written():
            number = unit.items[0].number
            self.bytes += unit.length
            self._transfer.progress.report_progress(unit, unit.length)
            if number in self._waiting:
                place = {"number": number, "offset": unit.offset, "length": unit.length, "digest": None}
                self._control.send(protocol.PLACED, place)

    def _receive_end(self, process: CopyProcess) -> None:
        """Process the end of a connection; restart a failed one for the remaining pieces after progress."""
        self._processes.remove(process)
        if process.exit_code == 0 or self.declined is not None or not self._waiting:
            return
        url = self._transfer.server.url
        problem = stalled(self._transfer.stall, url) if process.stalled else explain(process.errors, url)
        left = process.pieces[process.done :]
        if isinstance(problem, DeclinedError):
            self.declined = str(problem)
            self._stopped = True
            self._kill()
        elif isinstance(problem, TryLaterError) and process.done and left:
            self._start(left, sum(unit.length for unit in left))
        else:
            raise problem

    def _receive_digest(self, item: Item, digest: str | None, problem: Problem | None) -> list[Committed]:
        if item.number not in self._waiting:
            return []
        if problem is not None or digest is None:
            self._control.send(protocol.PLACED, {"number": item.number, "given_up": True})
            return [self._failed(item.number, problem or Problem("failed", "the source file was not hashed"))]
        self._digests[item.number] = digest
        self._control.send(protocol.PLACED, {"number": item.number, "digest": digest})
        return []

    def _receive_frame(self, frame: protocol.Frame) -> list[Committed]:
        header: dict[str, Any] = frame.header
        if frame.kind == protocol.END:
            self.left = header.get("left") is not False
            self.over = True
            return []
        if frame.kind != protocol.COMMITTED:
            raise self._control.broken(f"sent {frame.kind!r} while receiving")
        if header["unit"] is not None:
            self._opening.remove(int(header["unit"]))
        results = [self._failed(int(number), problem_from(found)) for number, found in header["failed"]]
        for number in map(int, header["done"]):
            item = self._waiting.pop(number)
            results.append(Committed(item, self._digests.pop(number), Verification.DIGEST))
        return results

    def _failed(self, number: int, problem: Problem) -> Committed:
        return Committed(self._waiting.pop(number), None, Verification.NONE, problem=problem)
