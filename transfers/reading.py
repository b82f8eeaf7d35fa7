"""Reading units from agents over one line or several, given out in the order they were asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator

from hibali.errors import HibaliError
from transfers.agent import frames
from transfers.agent.zeros import put_in
from transfers.arena import BULK_BYTES, take_room
from transfers.connection import Connection
from transfers.entry import Kind, Proof
from transfers.lines import Lines
from transfers.store import LINE_BYTES, MOST_BYTES, WINDOW_BYTES, Payload, Unit
from transfers.units import payload_of, problem_from, unit_header

_UNITS_AHEAD = 32


class _Answer:
    """What is awaited for one unit."""

    def __init__(self, line: _Line, unit: Unit, size: int) -> None:
        self.line = line
        self.unit = unit
        self.size = size
        self.digest: _Answer | None = None  # of the whole file, asked for by itself
        self.frame: frames.Frame | None = None
        self.problem: BaseException | None = None
        self.room: memoryview | None = None  # where an agent of this machine puts the bytes
        self.came = threading.Event()

    def wait(self) -> frames.Frame:
        """The frame, or the error that came instead."""
        self.came.wait()
        if self.problem is not None:
            raise self.problem
        assert self.frame is not None
        return self.frame


class ReadingStream:
    """One reading; used once. Files are read in their order and hashed on the way by the first line's agent, or,
    with further lines or from the middle on, in pieces by any of them while that agent hashes the whole.
    """

    def __init__(self, control: Connection, lines: Lines, root: bytes) -> None:
        self._lines = lines
        self._root = root
        self._control = _Line(control)
        self._further: list[_Line] = []
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
        self._further = [*self._further, _Line(connection, self._root)]

    def _has_room(self) -> bool:
        window = min(MOST_BYTES, WINDOW_BYTES + len(self._further) * LINE_BYTES)
        return self._held < window and len(self._order) < _UNITS_AHEAD * (1 + len(self._further))

    def _ask(self, unit: Unit) -> None:
        digest = self._digest_of(unit)
        free = [self._control, *(line for line in self._further if line.ready)]
        line = min(free, key=lambda one: one.held)
        if unit.segment and digest is None:
            line = self._control  # it hashes on the way, from the start on
        answer = self._send(line, unit, {"piece": True} if digest is not None else {})
        if unit.last:
            answer.digest = digest
        self._order.append(answer)
        self._held += answer.size

    def _digest_of(self, unit: Unit) -> _Answer | None:
        """The answer that will tell the digest of a file that is read in pieces; None for all else."""
        if not unit.segment:
            return None
        number = unit.items[0].number
        found = self._digests.get(number)
        if number != self._last_file and (unit.offset or self._lines.expected):
            found = self._digests[number] = self._send(self._control, unit, {"digest": True}, size=0)
        self._last_file = number
        if unit.last:
            self._digests.pop(number, None)
        return found

    def _send(self, line: _Line, unit: Unit, more: dict[str, bool], *, size: int | None = None) -> _Answer:
        self._number += 1
        answer = _Answer(line, unit, unit_bytes(unit) if size is None else size)
        line.ask(self._number, {**unit_header(unit, self._number), **more}, answer)
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
    """One agent: what it was asked, by number; a thread takes exactly as many answers."""

    def __init__(self, connection: Connection, root: bytes | None = None) -> None:
        """`root` is opened first where the connection is new."""
        self.connection = connection
        self.ready = root is None
        self.held = 0
        self._root = root
        self._guard = threading.Lock()
        self._asked: dict[int, _Answer] = {}
        self._tickets = threading.Semaphore(0)
        self._ending = False
        self._thread = threading.Thread(target=self._listen, name="read", daemon=True)
        self._thread.start()

    def ask(self, number: int, header: dict[str, object], answer: _Answer) -> None:
        """Send a unit."""
        memory = self.connection.memory
        if memory is not None and answer.size >= BULK_BYTES:
            answer.room = memory.take(answer.size)
            header = header if answer.room is None else {**header, "at": memory.place_of(answer.room)}
        with self._guard:
            self._asked[number] = answer
            self.held += answer.size
        self.connection.send(frames.UNIT, header)
        self._tickets.release()

    def end(self) -> None:
        """No more is asked; what was asked and not given out is not waited for."""
        self._ending = True
        self._tickets.release()

    def _listen(self) -> None:
        try:
            if self._root is not None:
                self.connection.ask("open", path=frames.text_of(self._root), make=False)
                self.ready = True
            while self._tickets.acquire():
                if self._ending:
                    return
                self._take(self.connection.receive())
        except BaseException as problem:  # noqa: BLE001  # raised again by whoever waits for an answer
            self.ready = False
            self._fail(problem)

    def _take(self, frame: frames.Frame) -> None:
        with self.connection.understanding():
            number = frame.header.get("unit")
            with self._guard:
                answer = self._asked.pop(number, None) if isinstance(number, int) else None
        if frame.kind != frames.DATA or answer is None:
            raise self.connection.broken("answered with data that was not asked for")
        self.held -= answer.size
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
            waiting, self._asked = list(self._asked.values()), {}
        for answer in waiting:
            answer.problem = problem
            answer.came.set()
        if not isinstance(problem, HibaliError):
            raise problem


def unit_bytes(unit: Unit) -> int:
    """How many bytes of files a unit carries."""
    if unit.segment:
        return unit.length
    return sum(item.entry.size for item in unit.items if item.entry.kind is Kind.FILE)
