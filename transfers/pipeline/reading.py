"""Read batches from agents over several channels, delivered in order."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from hibali.errors import HibaliError
from transfers.agent import protocol
from transfers.agent.reading import put_in
from transfers.entry import Kind, Proof
from transfers.pipeline.batches import Flow, first_through, payload_of, problem_from, unit_header
from transfers.pipeline.channel_pool import ChannelPool, window_bytes
from transfers.pipeline.shared_memory import BULK_BYTES, take_room
from transfers.reconnect import is_lost
from transfers.remote.connection import Connection
from transfers.stores.base import Payload, Unit

_UNITS_AHEAD = 32


class _Answer:
    """The pending answer for one unit."""

    def __init__(self, line: _Line, unit: Unit, size: int, number: int, more: dict[str, bool]) -> None:
        self.line = line
        self.unit = unit
        self.number = number
        self.header = {**unit_header(unit, number), **more}
        self.size = size
        self.digest: _Answer | None = None  # of the whole file, requested separately
        self.frame: protocol.Frame | None = None
        self.problem: BaseException | None = None
        self.room: memoryview | None = None  # where a local agent writes the bytes
        self.came = threading.Event()

    def fail(self, problem: BaseException | None) -> None:
        """Fail: no answer will come."""
        self.problem = problem
        self.came.set()

    def wait(self) -> protocol.Frame:
        """Wait for the frame; raises the error that came instead."""
        self.came.wait()
        if self.problem is not None:
            raise self.problem
        assert self.frame is not None
        return self.frame


class ReadingStream:
    """One reading; used once. Files are read in their order and hashed on the way by the first line's agent, or,
    with further lines or from the middle on, in pieces by any of them while that agent hashes the whole.
    """

    def __init__(self, control: Connection, lines: ChannelPool, root: bytes) -> None:
        self._lines = lines
        self._root = root
        self._control = _Line(control)
        self._further: list[_Line] = []
        self._guard = threading.Lock()
        self._order: deque[_Answer] = deque()
        self._held = 0
        self._number = 0
        self._digests: dict[int, _Answer] = {}
        self._last_file = -1

    def run(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store.read."""
        coming = iter(units)
        self._lines.watch(self._take_line)
        try:
            while True:
                while self._has_room():
                    unit = next(coming, None)
                    if unit is None:
                        break
                    self._ask(unit)
                if not self._order:
                    return
                answer = self._order.popleft()
                self._held -= answer.size
                yield self._payload(answer)
        finally:
            self._lines.unwatch()
            for line in (self._control, *self._further):
                line.end()

    def _take_line(self, connection: Connection) -> None:
        line = _Line(connection, self._root, self._line_lost)
        with self._guard:
            self._further = [*self._further, line]

    def _line_lost(self, lost: _Line, waiting: list[_Answer]) -> None:
        """Request again from other channels what a lost further channel did not answer; called in its thread."""
        with self._guard:
            self._further = [line for line in self._further if line is not lost]
        self._lines.replace(lost.connection)
        for answer in waiting:
            self._give_out(answer, self._free())

    def _free(self) -> list[_Line]:
        return [self._control, *(line for line in self._further if line.ready)]

    def _give_out(self, answer: _Answer, free: list[_Line]) -> None:
        """Send a request to the channel with the least work; where the first channel is lost, too, fail with its error."""
        left = list(free)
        while left:
            answer.line = first_through(left, answer.size)
            if answer.line.ask(answer):
                return
            left.remove(answer.line)
        answer.fail(self._control.problem)

    def _has_room(self) -> bool:
        ready = sum(line.ready for line in self._further)
        return self._held < window_bytes(ready, self._lines) and len(self._order) < _UNITS_AHEAD * (
            1 + len(self._further)
        )

    def _ask(self, unit: Unit) -> None:
        digest = self._digest_of(unit)
        free = self._free()
        piece = unit.piece or digest is not None
        if unit.segment and not piece:
            free = [self._control]  # it hashes on the way, from the start on
        answer = self._send(free, unit, {"piece": True} if piece else {})
        if unit.last:
            answer.digest = digest
        self._order.append(answer)
        self._held += answer.size

    def _digest_of(self, unit: Unit) -> _Answer | None:
        """Return the pending digest of a file that is read in pieces; None for all else."""
        if not unit.segment or unit.piece:
            return None
        number = unit.items[0].number
        found = self._digests.get(number)
        if number != self._last_file and (unit.offset or self._lines.expected):
            found = self._digests[number] = self._send([self._control], unit, {"digest": True}, size=0)
        self._last_file = number
        if unit.last:
            self._digests.pop(number, None)
        return found

    def _send(
        self, free: list[_Line], unit: Unit, more: dict[str, bool], *, size: int | None = None
    ) -> _Answer:
        self._number += 1
        asked = unit_bytes(unit) if size is None else size
        answer = _Answer(free[0], unit, asked, self._number, more)
        self._give_out(answer, free)
        return answer

    def _payload(self, answer: _Answer) -> Payload:
        frame = answer.wait()
        connection = answer.line.connection
        if answer.digest is None:
            return payload_of(answer.unit, frame, connection)
        told = answer.digest.wait()
        with connection.understanding():
            problem = told.header["problems"].get("0") or frame.header["problems"].get("0")
            if problem is not None:
                return Payload(answer.unit, b"", [0], [None], [Proof.NONE], {0: problem_from(problem)})
            frame.header["digests"] = told.header["digests"]
        return payload_of(answer.unit, frame, connection)


class _Line:
    """One agent with its pending requests, by number; a thread reads exactly as many answers."""

    def __init__(
        self,
        connection: Connection,
        root: bytes | None = None,
        tell_lost: Callable[[_Line, list[_Answer]], None] | None = None,
    ) -> None:
        """`root` is opened first where the connection is new; where it is lost, `tell_lost` takes what was not answered."""
        self.connection = connection
        self.problem: BaseException | None = None  # why it answers no more
        self._tell_lost = tell_lost
        self.ready = root is None
        self.flow = Flow()
        self._root = root
        self._guard = threading.Lock()
        self._asked: dict[int, _Answer] = {}
        self._tickets = threading.Semaphore(0)
        self._ending = False
        self._thread = threading.Thread(target=self._listen, name="read", daemon=True)
        self._thread.start()

    def ask(self, answer: _Answer) -> bool:
        """Send a unit; False where the channel is lost, which the thread that reads answers finds out."""
        memory, header = self.connection.memory, answer.header
        if memory is not None and answer.size >= BULK_BYTES:
            answer.room = memory.take(answer.size)
            header = header if answer.room is None else {**header, "at": memory.place_of(answer.room)}
        with self._guard:
            if self.problem is not None:
                return False
            self._asked[answer.number] = answer
            self.flow.take(answer.size)
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
                self.connection.ask("open", path=protocol.text_of(self._root), make=False)
                self.ready = True
            while self._tickets.acquire():
                if self._ending:
                    return
                self._take(self.connection.receive())
        except BaseException as problem:  # noqa: BLE001  # raised again by the waiting thread
            self.ready = False
            self._fail(problem)

    def _take(self, frame: protocol.Frame) -> None:
        with self.connection.understanding():
            number = frame.header.get("unit")
            with self._guard:
                answer = self._asked.pop(number, None) if isinstance(number, int) else None
        if frame.kind != protocol.DATA or answer is None:
            raise self.connection.broken("answered with data that was not asked for")
        with self._guard:
            self.flow.give_back(answer.size)
        with self.connection.understanding():
            length = answer.size if answer.unit.segment else 0
            frame = frame._replace(body=put_in(frame.header, frame.body, length, take_room))
        if answer.room is not None:
            with self.connection.understanding():
                frame = frame._replace(body=answer.room[: sum(frame.header["sizes"])])
        answer.frame = frame
        answer.came.set()

    def _fail(self, problem: BaseException) -> None:
        with self._guard:
            self.problem = problem
            waiting, self._asked = list(self._asked.values()), {}
        if self._tell_lost is not None and is_lost(problem) and not self._ending:
            self._tell_lost(self, waiting)
            return
        for answer in waiting:
            answer.fail(problem)
        if not isinstance(problem, HibaliError):
            raise problem


def unit_bytes(unit: Unit) -> int:
    """Return how many bytes of files a unit has."""
    if unit.segment:
        return unit.length
    return sum(item.entry.size for item in unit.items if item.entry.kind is Kind.FILE)
