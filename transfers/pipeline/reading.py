"""Read batches from agents over several channels, delivered in order."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from hibali.errors import HibaliError, is_lost
from transfers.agent import protocol
from transfers.agent.protocol import with_zeros
from transfers.model.entry import Verification
from transfers.model.units import Payload, Unit, problem_from
from transfers.pipeline.batches import Flow, first_through, payload_of, unit_bytes, unit_header
from transfers.pipeline.channel_pool import ChannelPool, window_bytes
from transfers.remote.connection import Connection
from transfers.remote.shared_memory import BULK_BYTES, allocate_buffer

_UNITS_AHEAD = 32


class _PendingUnit:
    """A unit whose reply is pending."""

    def __init__(self, channel: _Channel, unit: Unit, size: int, number: int, more: dict[str, bool]) -> None:
        self.channel = channel
        self.unit = unit
        self.number = number
        self.header = {**unit_header(unit, number), **more}
        self.size = size
        self.digest: _PendingUnit | None = None  # of the whole file, requested separately
        self.frame: protocol.Frame | None = None
        self.problem: BaseException | None = None
        self.buffer: memoryview | None = None  # a local agent writes the bytes here
        self.arrived = threading.Event()

    def fail(self, problem: BaseException | None) -> None:
        """Fail: no reply will come."""
        self.problem = problem
        self.arrived.set()

    def wait(self) -> protocol.Frame:
        """Wait for the reply; raises the error that occurred instead."""
        self.arrived.wait()
        if self.problem is not None:
            raise self.problem
        assert self.frame is not None
        return self.frame


class ReadingStream:
    """One reading; used once. The first channel's agent reads files in order and hashes them. With further channels,
    or for a resumed file, any agent reads pieces, while the first one hashes the whole file.
    """

    def __init__(self, control: Connection, channels: ChannelPool, root: bytes) -> None:
        self._channels = channels
        self._root = root
        self._control = _Channel(control)
        self._further: list[_Channel] = []
        self._guard = threading.Lock()
        self._order: deque[_PendingUnit] = deque()
        self._held = 0
        self._number = 0
        self._digests: dict[int, _PendingUnit] = {}
        self._last_file = -1

    def run(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store.read."""
        units_left = iter(units)
        self._channels.watch(self._add_channel)
        try:
            while True:
                while self._may_send():
                    unit = next(units_left, None)
                    if unit is None:
                        break
                    self._request(unit)
                if not self._order:
                    return
                pending = self._order.popleft()
                self._held -= pending.size
                yield self._payload(pending)
        finally:
            self._channels.unwatch()
            for channel in (self._control, *self._further):
                channel.end()

    def _add_channel(self, connection: Connection) -> None:
        channel = _Channel(connection, self._root, self._channel_lost)
        with self._guard:
            self._further = [*self._further, channel]

    def _channel_lost(self, lost: _Channel, waiting: list[_PendingUnit]) -> None:
        """Request the unanswered units of a lost channel from other channels; called in its thread."""
        with self._guard:
            self._further = [channel for channel in self._further if channel is not lost]
        self._channels.replace(lost.connection)
        for pending in waiting:
            self._assign(pending, self._free())

    def _free(self) -> list[_Channel]:
        return [self._control, *(channel for channel in self._further if channel.ready)]

    def _assign(self, pending: _PendingUnit, free: list[_Channel]) -> None:
        """Send a request to the channel with the least work; if the first channel is lost, too, fail with its error."""
        left = list(free)
        while left:
            pending.channel = first_through(left, pending.size)
            if pending.channel.request(pending):
                return
            left.remove(pending.channel)
        pending.fail(self._control.problem)

    def _may_send(self) -> bool:
        ready = sum(channel.ready for channel in self._further)
        return self._held < window_bytes(ready, self._channels) and len(self._order) < _UNITS_AHEAD * (
            1 + len(self._further)
        )

    def _request(self, unit: Unit) -> None:
        digest = self._digest_of(unit)
        free = self._free()
        piece = unit.piece or digest is not None
        if unit.segment and not piece:
            free = [self._control]  # it hashes the file as it reads, from the start
        pending = self._send(free, unit, {"piece": True} if piece else {})
        if unit.last:
            pending.digest = digest
        self._order.append(pending)
        self._held += pending.size

    def _digest_of(self, unit: Unit) -> _PendingUnit | None:
        """Return the pending digest of a file that is read in pieces; None for other units."""
        if not unit.segment or unit.piece:
            return None
        number = unit.items[0].number
        found = self._digests.get(number)
        if number != self._last_file and (unit.offset or self._channels.expected):
            found = self._digests[number] = self._send([self._control], unit, {"digest": True}, size=0)
        self._last_file = number
        if unit.last:
            self._digests.pop(number, None)
        return found

    def _send(
        self, free: list[_Channel], unit: Unit, more: dict[str, bool], *, size: int | None = None
    ) -> _PendingUnit:
        self._number += 1
        size_sent = unit_bytes(unit) if size is None else size
        pending = _PendingUnit(free[0], unit, size_sent, self._number, more)
        self._assign(pending, free)
        return pending

    def _payload(self, pending: _PendingUnit) -> Payload:
        frame = pending.wait()
        connection = pending.channel.connection
        if pending.digest is None:
            return payload_of(pending.unit, frame, connection)
        digest_frame = pending.digest.wait()
        with connection.understanding():
            problem = digest_frame.header["problems"].get("0") or frame.header["problems"].get("0")
            if problem is not None:
                return Payload(
                    pending.unit, b"", [0], [None], [Verification.NONE], {0: problem_from(problem)}
                )
            frame.header["digests"] = digest_frame.header["digests"]
        return payload_of(pending.unit, frame, connection)


class _Channel:
    """One agent with its pending requests, by number; a thread reads as many replies."""

    def __init__(
        self,
        connection: Connection,
        root: bytes | None = None,
        on_lost: Callable[[_Channel, list[_PendingUnit]], None] | None = None,
    ) -> None:
        """`root` is opened first over a new connection; `on_lost` gets the unanswered units of a lost one."""
        self.connection = connection
        self.problem: BaseException | None = None  # the error that ended it
        self._on_lost = on_lost
        self.ready = root is None
        self.flow = Flow()
        self._root = root
        self._guard = threading.Lock()
        self._pending: dict[int, _PendingUnit] = {}
        self._tickets = threading.Semaphore(0)
        self._ending = False
        self._thread = threading.Thread(target=self._listen, name="read", daemon=True)
        self._thread.start()

    def request(self, pending: _PendingUnit) -> bool:
        """Send a unit; False if the channel is lost, which the reading thread detects."""
        memory, header = self.connection.memory, pending.header
        if memory is not None and pending.size >= BULK_BYTES:
            pending.buffer = memory.allocate(pending.size)
            header = header if pending.buffer is None else {**header, "at": memory.offset_of(pending.buffer)}
        with self._guard:
            if self.problem is not None:
                return False
            self._pending[pending.number] = pending
            self.flow.add_in_flight(pending.size)
        with contextlib.suppress(HibaliError):
            self.connection.send(protocol.UNIT, header)
        self._tickets.release()
        return True

    def end(self) -> None:
        """End: send no more requests, and do not wait for pending ones."""
        self._ending = True
        self._tickets.release()

    def _listen(self) -> None:
        try:
            if self._root is not None:
                self.connection.request("open", path=protocol.text_of(self._root), make=False)
                self.ready = True
            while self._tickets.acquire():
                if self._ending:
                    return
                self._receive_frame(self.connection.receive())
        except BaseException as problem:  # noqa: BLE001  # raised again by the waiting thread
            self.ready = False
            self._fail(problem)

    def _receive_frame(self, frame: protocol.Frame) -> None:
        with self.connection.understanding():
            number = frame.header.get("unit")
            # it stays pending until its reply is understood: a failure reaches all that wait
            pending = self._pending.get(number) if isinstance(number, int) else None
        if frame.kind != protocol.DATA or pending is None:
            raise self.connection.broken("sent data that was not requested")
        with self._guard:
            self.flow.subtract_answered(pending.size)
        with self.connection.understanding():
            length = pending.size if pending.unit.segment else 0
            frame = frame._replace(body=with_zeros(frame.header, frame.body, length, allocate_buffer))
        if pending.buffer is not None:
            with self.connection.understanding():
                frame = frame._replace(body=pending.buffer[: sum(frame.header["sizes"])])
        with self._guard:
            del self._pending[pending.number]
        pending.frame = frame
        pending.arrived.set()

    def _fail(self, problem: BaseException) -> None:
        with self._guard:
            self.problem = problem
            waiting, self._pending = list(self._pending.values()), {}
        if self._on_lost is not None and is_lost(problem) and not self._ending:
            self._on_lost(self, waiting)
            return
        for pending in waiting:
            pending.fail(problem)
