"""Send batches to a target's agents over several channels, and collect what was committed."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hibali.errors import HibaliError, TryLaterError, is_lost
from transfers.agent import protocol
from transfers.agent.protocol import aside_path, partial_path, without_zeros
from transfers.model.entry import Verification
from transfers.model.units import SEGMENT_BYTES, Committed, Item, Payload, Problem, problem_from
from transfers.pipeline.batches import Flow, Window, data_header, first_through, item_header, unit_header
from transfers.pipeline.channel_pool import ChannelPool, window_bytes
from transfers.remote.connection import Connection
from transfers.remote.shared_memory import BULK_BYTES

# In flight to an agent on this machine: it never waits for the next piece, and an interruption loses none of them.
_HERE_BYTES = 2 * SEGMENT_BYTES


class Sender:
    """One channel with the units that were sent over it and have no reply yet."""

    def __init__(self, stream: ReceiverStream, connection: Connection) -> None:
        self.stream = stream
        self.connection = connection
        self.unanswered: dict[int, Payload | None] = {}
        self.flow = Flow()
        self.over = False
        self._guard = threading.Lock()
        self._writing = threading.Lock()

    def send(self, number: int, payload: Payload) -> bool:
        """Send a unit; `listen` receives the reply. Return False if the channel is lost."""
        with self._guard:
            if self.over:
                return False
            self.unanswered[number] = payload
            self.flow.add_in_flight(len(payload.data))
        self._write(number, payload)
        return True

    def _write(self, number: int, payload: Payload) -> None:
        header, memory = data_header(payload, number), self.connection.memory
        body: protocol.Body = payload.data
        if memory is not None and len(body) >= BULK_BYTES:
            payload.data = body = memory.hold(body)
            at = memory.offset_of(body)
            if at is not None:
                header, body = {**header, "at": at}, b""
        if payload.unit.segment and "at" not in header:
            header, body = without_zeros(header, body)
        with self._writing:  # a unit and its data must not be separated
            self.connection.send(protocol.UNIT, unit_header(payload.unit, number))
            self.connection.send(protocol.DATA, header, body)

    def listen(self) -> None:
        """Read replies until the channel's END; runs in its own thread."""
        try:
            while True:
                frame = self.connection.receive()
                if frame.kind == protocol.END:
                    break
                if frame.kind != protocol.COMMITTED:
                    raise self.connection.broken(f"sent {frame.kind!r} while receiving")
                self._committed(frame.header)
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that reads the results
            self.lost(problem)
        else:
            self.ended(frame)

    def lost(self, problem: BaseException) -> None:
        """End the whole transfer: the channel is lost or its replies are invalid."""
        self.stream.end(problem)

    def ended(self, frame: protocol.Frame) -> None:
        """End the whole transfer: the agent that holds the lock has finished."""
        del frame
        self.stream.end(None)

    def _committed(self, header: dict[str, Any]) -> None:
        with self.connection.understanding():
            number = None if header["unit"] is None else int(header["unit"])
            done = {int(one): int(inode) for one, inode in zip(header["done"], header["inodes"], strict=True)}
            failed = {int(one): problem_from(problem) for one, problem in header["failed"]}
        if number is None:
            self._large_committed(done, failed)
            return
        with self._guard:
            if number not in self.unanswered:
                raise self.connection.broken("reported a unit that was not sent")
            payload = self.unanswered.pop(number)
            self.flow.subtract_answered(len(payload.data) if payload is not None else 0)
        if payload is None or payload.unit.segment:
            self._piece_committed(payload, done, failed)
        else:
            self._pack_committed(payload, done, failed)
        self.stream.close(number)

    def _large_committed(self, done: dict[int, int], failed: dict[int, Problem]) -> None:
        known = [self.stream.large_done(one, inode) for one, inode in done.items()]
        known += [self.stream.large_failed(one, problem) for one, problem in failed.items()]
        if not all(known):
            raise self.connection.broken("committed an item that was not planned")

    def _piece_committed(
        self, payload: Payload | None, done: dict[int, int], failed: dict[int, Problem]
    ) -> None:
        del payload
        if done or not all(self.stream.large_failed(one, problem) for one, problem in failed.items()):
            raise self.connection.broken("committed an item that was not planned")

    def _pack_committed(self, payload: Payload, done: dict[int, int], failed: dict[int, Problem]) -> None:
        items = {item.number: position for position, item in enumerate(payload.unit.items)}
        results: list[Committed] = []
        left = len(done) + len(failed)
        for number in [*failed, *done]:  # a success last, if there is one: it is written to the journal
            position = items.pop(number, None)
            if position is None:
                self.stream.report(results)
                raise self.connection.broken("committed an item that was not planned")
            problem, left = failed.get(number), left - 1
            digest, verification = payload.digests[position], Verification.DIGEST
            if problem is not None:
                digest, verification = None, Verification.NONE
            item = payload.unit.items[position]
            inode = done.get(number, 0)
            results.append(Committed(item, digest, verification, None, problem, left > 0, inode))
        self.stream.report(results)


class Worker(Sender):
    """A further channel with its own writing thread, so that no channel waits for another."""

    def __init__(self, stream: ReceiverStream, connection: Connection, root: bytes, ticket: Any) -> None:
        super().__init__(stream, connection)
        self.ready = False
        self._joined = threading.Event()  # also set when joining failed
        self._ended = threading.Event()
        self._left = True
        self._cleared = False
        self.reclaimed: dict[int, Payload] = {}
        self._units: queue.SimpleQueue[tuple[int, Payload] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(root, ticket), name="worker", daemon=True).start()

    def _work(self, root: bytes, ticket: Any) -> None:
        try:
            there = {"path": protocol.text_of(root), "make": False}
            self.connection.request_all([("open", there), ("join", {"ticket": ticket})])
            self.ready = True
            threading.Thread(target=self.listen, name="replies", daemon=True).start()
            self._joined.set()
            self.stream.joined()
            while (work := self._units.get()) is not None:
                super()._write(*work)
            self.connection.send(protocol.REQUEST, {"do": "finish_receiving"})
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that reads the results
            # a site that lets no further channel join only means one channel less
            if self.ready or not isinstance(problem, HibaliError):
                self.lost(problem)
            self._ended.set()
        finally:
            self._joined.set()

    def lost(self, problem: BaseException) -> None:
        """Stop using a lost channel: other channels take over its units, and no thread waits for it."""
        with self._guard:
            first, self.over = not self.over, True
            self.ready = False
        # If the lock was lost with the first channel, other agents notice it before this process does.
        if first and (is_lost(problem) or getattr(problem, "code", "") == "lease-lost"):
            self._units.put(None)
            self.stream.worker_lost(self)
        elif first:
            super().lost(problem)
        self._ended.set()

    def reclaim_units(self) -> list[tuple[int, Payload]]:
        """Return the unanswered units of a lost channel, once. They stay in `reclaimed` until other channels have them."""
        with self._guard:
            self.reclaimed = {number: one for number, one in self.unanswered.items() if one is not None}
            self.unanswered.clear()
            self.flow = Flow()
        return list(self.reclaimed.items())

    def stop_sending(self) -> None:
        """Send no more units."""
        self._units.put(None)

    def _write(self, number: int, payload: Payload) -> None:
        self._cleared = self._cleared or any(item.clear for item in payload.unit.items)
        self._units.put((number, payload))

    def _piece_committed(
        self, payload: Payload | None, done: dict[int, int], failed: dict[int, Problem]
    ) -> None:
        super()._piece_committed(payload, done, failed)
        if failed:
            self.stream.abandon(next(iter(failed)))
        elif payload is not None:
            self.stream.placed(payload)

    def ended(self, frame: protocol.Frame) -> None:
        """Note that the channel has ended; the unlock request reports whether partial files are left."""
        self._left = frame.header.get("left") is not False
        self._ended.set()

    def finish(self) -> bool:
        """Wait for the end, after `stop_sending`; return whether partial files may be left."""
        self._joined.wait()
        if self.ready:
            self._ended.wait()
        if self.over:  # other channels committed its units; only folders that were moved away may be left
            return self._cleared
        return self.ready and self._left


class PartialFiles:
    """The partial large files that the agent reports at the start: identity and existing bytes."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, int, str, int]] = {}

    def read(self, header: dict[str, Any]) -> None:
        """Read the reply to `land`; raises KeyError, TypeError or ValueError for another shape."""
        for path, size, mtime_ns, tag, there in header["begun"]:
            self._known[protocol.bytes_of(path)] = (int(size), int(mtime_ns), str(tag), int(there))

    def bytes_of(self, item: Item) -> int:
        """Return how many bytes of this file exist at the target; 0 if the file has changed since."""
        entry = item.entry
        size, mtime_ns, tag, there = self._known.get(entry.path, (-1, 0, "", 0))
        same = (size, mtime_ns, tag) == (entry.size, entry.mtime_ns, entry.etag or "")
        return there if same and 0 < there < size else 0

    @property
    def bytes(self) -> int:
        """Return the number of bytes of all partial files."""
        return sum(there for _, _, _, there in self._known.values())


@dataclass(slots=True)
class LargeFile:
    """A large file in progress: the source's digest, and whether that is sent separately."""

    item: Item
    digest: str | None = None
    apart: bool = False


_Value = TypeVar("_Value")
_Result = Sequence[Committed] | BaseException | None


class Receiver(ABC, Generic[_Value]):
    """One transfer of values to a target, used once: a thread sends, another listens, the caller gets the results."""

    fresh = False  # nothing of an earlier operation existed

    def __init__(self, control: Connection, root: bytes, window_bytes: Callable[[], int]) -> None:
        """`control` leads to the agent that reports what it committed below `root`."""
        self._control = control
        self._root = root
        self._results: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        self._window = Window(window_bytes)
        self._large: dict[int, LargeFile] = {}
        self._failed_large: list[bytes] = []
        self._ended: set[int] = set()
        self._guard = threading.Lock()
        self._started = threading.Event()
        self._partial_files = PartialFiles()
        self.left = False
        self.over = False  # the agent that holds the lock has finished and accepts other requests

    @abstractmethod
    def _send(self, values: Iterable[_Value]) -> None:
        """Send all values; runs in its own thread, which therefore also reads the source."""

    @abstractmethod
    def _listen(self) -> None:
        """Read replies until the last END; runs in its own thread."""

    def run(self, values: Iterable[_Value]) -> Generator[Committed, None, None]:
        """Yield each item's result; raise an error of either side after the other side has stopped."""
        sending = threading.Thread(target=self._send, args=(values,), name="send", daemon=True)
        sending.start()
        threading.Thread(target=self._listen, name="replies", daemon=True).start()
        try:
            while (result := self._results.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                yield from result
        finally:
            self._window.stop()
            sending.join()

    def begun(self, item: Item) -> int:
        """Return how many bytes of this file the target already has; waits for the agent's first reply."""
        self._started.wait()
        return self._partial_files.bytes_of(item)

    def report(self, results: Sequence[Committed]) -> None:
        """Report the results of one reply."""
        self._results.put(results)

    def done(self, item: Item, digest: str | None, inode: int = 0) -> None:
        """Report an item that was committed under its final name."""
        self.report([Committed(item, digest, Verification.DIGEST, inode=inode)])

    def failed(self, item: Item, problem: Problem) -> None:
        """Report an item that failed."""
        self.report([Committed(item, None, Verification.NONE, problem=problem)])

    def end_large(self, number: int) -> LargeFile | None:
        """Return a large file whose result arrived, once; None afterwards."""
        with self._guard:
            large = self._large.pop(number, None)
            if large is not None:
                self._ended.add(number)
            return large

    def large_failed(self, number: int, problem: Problem) -> bool:
        """Report a failed large file once; return False if it never was in progress."""
        large = self.end_large(number)
        if large is not None:
            self._failed_large.append(large.item.entry.path)
            self.failed(large.item, problem)
        return number in self._ended

    def abandon(self, number: int) -> None:
        """Discard everything that was received of a large file."""
        self._control.send(protocol.PLACED, {"number": number, "given_up": True})


class ReceiverStream(Receiver[Payload]):
    """A transfer to the agent that holds the lock and to those of further channels.

    Each pack or piece of a large file goes to the channel with the least work. The agent that holds the lock
    is notified of each piece, hashes each large file as pieces arrive, and renames it.
    """

    def __init__(
        self, control: Connection, channels: ChannelPool, root: bytes, ticket: Any | None = None
    ) -> None:
        """With a `ticket`, the agent of another process holds the lock."""
        super().__init__(control, root, self._window_bytes)
        self._opening = {} if ticket is None else {"ticket": ticket}
        self._channels = channels
        self._workers: list[Worker] = []
        self._lost = 0
        self._all_sent = False
        self._own = Sender(self, control)
        self._seed: bytes | None = None
        self._cleared: list[bytes] = []
        self.walked = False  # the agent listed all partial files at the target

    def run(self, values: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Receiver."""
        self._control.send(protocol.REQUEST, {"do": "start_receiving", **self._opening})
        try:
            yield from super().run(values)
        finally:
            self._channels.unwatch()
            for worker in self._workers:
                worker.stop_sending()

    def _listen(self) -> None:
        """See Receiver; the replies of the first channel."""
        try:
            ticket = self._begin()
            with self._guard:
                if not self._all_sent:
                    self._channels.watch(lambda channel: self._add_channel(channel, ticket))
            self._started.set()
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that reads the results
            self.end(problem)
        else:
            self._own.listen()
        finally:
            self._started.set()

    def _begin(self) -> Any:
        """Read which large files an earlier operation left, and return the ticket for further channels."""
        reply = next(self._control.replies_to("start_receiving"))
        with self._control.understanding():
            self._partial_files.read(reply.header)
            ticket = reply.header["ticket"]
            self._seed, self.walked = bytes.fromhex(ticket["seed"]), bool(reply.header["walked"])
            return ticket

    @property
    def begun_bytes(self) -> int:
        """Return how many bytes of large files existed at the start."""
        return self._partial_files.bytes

    def partials(self) -> list[bytes]:
        """Return the partial files that interrupted agents may have left.

        Those of large files are included: a further channel may create one of which the first, lost already, knows and
        records nothing. The agent keeps those that its journal has.
        """
        if self._seed is None:
            return []
        waiting = [
            payload for sender in (self._own, *self._workers) for payload in [*sender.unanswered.values()]
        ]
        waiting += [payload for worker in self._workers for payload in [*worker.reclaimed.values()]]
        packs = [payload.unit for payload in waiting if payload is not None and not payload.unit.segment]
        with self._guard:
            large = [one.item.entry.path for one in self._large.values()] + self._failed_large
        paths = [*(item.entry.path for unit in packs for item in unit.items), *large]
        left = [partial_path(self._seed, path) for path in paths]
        return left + [aside_path(self._seed, path) for path in self._cleared]

    def _send(self, values: Iterable[Payload]) -> None:
        """See Receiver."""
        try:
            for number, payload in enumerate(values):
                if not self._pass_on(number * 2, payload):
                    return
            with self._guard:
                self._all_sent = True  # a channel that opens now has nothing to do
            self._channels.unwatch()
            if self._workers:  # a unit in flight may have to be sent again, over another channel
                self._window.wait_empty()
            if not self._window.stopped:
                for worker in self._workers:
                    worker.stop_sending()
                # The agent ends after the units before it; all channels end within one round trip.
                self._control.send(protocol.REQUEST, {"do": "finish_receiving"})
                for worker in self._workers:
                    self.left = worker.finish() or self.left
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that reads the results
            self._results.put(problem)

    def _add_channel(self, connection: Connection, ticket: Any) -> None:
        self._workers = [*self._workers, Worker(self, connection, self._root, ticket)]

    def _window_bytes(self) -> int:
        if self._control.memory is not None:
            return _HERE_BYTES
        return window_bytes(sum(worker.ready for worker in self._workers), self._channels)

    def _pass_on(self, number: int, payload: Payload) -> bool:
        """Send a payload over a channel; False when all must stop. Uses `number` and perhaps the next."""
        unit = payload.unit
        item = unit.items[0]
        if not unit.segment:
            clear = [one.entry.path for one in unit.items if one.clear]
            self._cleared += clear
            alone = bool(clear)
            if alone and not self._window.wait_empty():
                return False
            return self._send_payload(number, payload) and not (alone and not self._window.wait_empty())
        if item.number in self._ended:
            return True
        with self._guard:
            fresh = item.number not in self._large
            self._large[item.number] = LargeFile(item, payload.digests[0])
        if payload.problems:
            self.abandon(item.number)
            self.large_failed(item.number, payload.problems[0])
            return True
        if fresh and not self._announce(number + 1, item, unit.offset):
            return False
        return item.number in self._ended or self._send_payload(number, payload)

    def _announce(self, number: int, item: Item, offset: int) -> bool:
        """Announce a large file; a resumed one must be ready at the target before its pieces arrive."""
        if not self._window.open(number, 0):
            return False
        self._own.unanswered[number] = None
        header = {"unit": number, "item": item_header(item), "from": offset}
        self._control.send(protocol.FILE, header)
        return not offset or self._window.wait_closed(number)

    def _send_payload(self, number: int, payload: Payload) -> bool:
        size = len(payload.data)
        if not self._window.open(number, size, of=_file_of(payload), offset=payload.unit.offset):
            return False
        self._dispatch(number, payload)
        return True

    def _dispatch(self, number: int, payload: Payload) -> None:
        """Send a unit over the channel that would finish it first; skip one that was just lost."""
        sent = False
        while not sent:
            senders: Sequence[Sender] = [worker for worker in self._workers if worker.ready] or [self._own]
            sent = first_through(senders, len(payload.data)).send(number, payload)

    def joined(self) -> None:
        """Let more bytes be in flight, because a further worker is ready."""
        self._window.recheck()

    def worker_lost(self, worker: Worker) -> None:
        """End the lost worker's agent before others get its units: it must not write at the same time."""
        self._channels.replace(worker.connection)
        with self._guard:
            self._lost += 1
            number = -self._lost
        if not self._window.open(number, 0):  # the transfer waits for this reply
            return
        if worker.unanswered:
            threading.Thread(
                target=self._reassign, args=(worker, number), name="take over", daemon=True
            ).start()
        else:
            self._window.close(number)

    def _reassign(self, worker: Worker, ending: int) -> None:
        """Give the units to other channels; the reply to unit `ending` confirms that the old agent has ended."""
        if worker.connection.process["boot"] != self._control.process["boot"]:
            # only by taking the lock anew, an agent of another data host is stopped
            self._control.lost = True
            message = "the connection to another data host was lost"
            self.end(TryLaterError("connection-lost", message, subject=self._control.subject))
            return
        try:
            self._own.unanswered[ending] = None
            reply = {"do": "end_stale_agents", "unit": ending, "agents": [worker.connection.process]}
            self._control.send(protocol.REQUEST, reply)
            if self._window.wait_closed(ending):
                for number, payload in worker.reclaim_units():
                    self._dispatch(number, payload)
                    del worker.reclaimed[number]
        except HibaliError as problem:
            self.end(problem)

    def placed(self, payload: Payload) -> None:
        """Notify the agent that holds the lock that a worker wrote a piece."""
        unit = payload.unit
        header = {"number": unit.items[0].number, "offset": unit.offset, "length": unit.length}
        self._control.send(protocol.PLACED, {**header, "digest": payload.digests[0]})

    def close(self, number: int) -> None:
        """Remove an answered unit from the window."""
        self._window.close(number)

    def large_done(self, number: int, inode: int = 0) -> bool:
        """Finish a large file that was committed; return False if it is not in progress."""
        large = self.end_large(number)
        if large is not None:
            self.done(large.item, large.digest, inode)
        return number in self._ended

    def end(self, problem: BaseException | None) -> None:
        """Finish: the last reply arrived, or an error means that none will."""
        self.over = self.over or problem is None
        self._results.put(problem)
        self._window.stop()


def _file_of(payload: Payload) -> int | None:
    return payload.unit.items[0].number if payload.unit.segment else None
