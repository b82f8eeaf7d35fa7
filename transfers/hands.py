"""The lines of a landing: each sends units to one agent, takes its answers, and says what became of them."""

from __future__ import annotations

import queue
import threading
from typing import Any, Protocol

from hibali.errors import HibaliError
from transfers.agent import frames
from transfers.agent.zeros import leave_out
from transfers.arena import BULK_BYTES
from transfers.connection import Connection
from transfers.flow import Flow
from transfers.going_on import is_lost
from transfers.store import Item, Payload, Problem
from transfers.units import data_header, problem_from, unit_header


class Landing(Protocol):
    """Whoever keeps the window and tells what became of each item; called from the threads of the lines."""

    def joined(self) -> None:
        """A hand can take units."""

    def placed(self, payload: Payload) -> None:
        """A hand wrote a piece of a large file."""

    def close(self, number: int) -> None:
        """A unit is answered."""

    def done(self, item: Item, digest: str | None) -> None:
        """An item stands there under its name."""

    def failed(self, item: Item, problem: Problem) -> None:
        """An item does not."""

    def large_done(self, number: int) -> bool:
        """A large file has its name; False for one that was not under way."""

    def large_failed(self, number: int, problem: Problem) -> bool:
        """A large file cannot be landed, told once; False for one that never was under way."""

    def give_up(self, number: int) -> None:
        """Nothing of a large file is to stay."""

    def end(self, problem: BaseException | None) -> None:
        """The last answer came, or none will."""

    def hand_lost(self, hand: Hand) -> None:
        """The line of a hand is lost; what it had under way is still there to be taken."""


class Sender:
    """One line: what was sent over it and not answered yet, by unit."""

    def __init__(self, stream: Landing, connection: Connection) -> None:
        self.stream = stream
        self.connection = connection
        self.under_way: dict[int, Payload | None] = {}
        self.flow = Flow()
        self.over = False
        self._guard = threading.Lock()
        self._writing = threading.Lock()

    def send(self, number: int, payload: Payload) -> bool:
        """Send a unit; its answer comes to `listen`. False where the line is lost and takes no more."""
        with self._guard:
            if self.over:
                return False
            self.under_way[number] = payload
            self.flow.take(len(payload.data))
        self._write(number, payload)
        return True

    def _write(self, number: int, payload: Payload) -> None:
        with self._writing:  # a unit and its data belong together
            self._write_unit(number, payload)

    def _write_unit(self, number: int, payload: Payload) -> None:
        self.connection.send(frames.UNIT, unit_header(payload.unit, number))
        header, memory = data_header(payload, number), self.connection.memory
        if memory is not None and len(payload.data) >= BULK_BYTES:
            payload.data = memory.hold(payload.data)
            at = memory.place_of(payload.data)
            if at is not None:
                self.connection.send(frames.DATA, {**header, "at": at})
                return
        segment = payload.unit.segment
        self.connection.send(
            frames.DATA, *(leave_out(header, payload.data) if segment else (header, payload.data))
        )

    def listen(self) -> None:
        """Runs in its own thread until the line's END."""
        try:
            while True:
                frame = self.connection.receive()
                if frame.kind == frames.END:
                    break
                if frame.kind != frames.LANDED:
                    raise self.connection.broken(f"sent {frame.kind!r} while landing")
                self._landed(frame.header)
        except BaseException as problem:  # noqa: BLE001  # raised again by whoever takes the answers
            self.lost(problem)
        else:
            self.ended(frame)

    def lost(self, problem: BaseException) -> None:
        """The line is gone, or is not to be believed: so is the landing."""
        self.stream.end(problem)

    def ended(self, frame: frames.Frame) -> None:
        """The lock's holder is through: so is all."""
        del frame
        self.stream.end(None)

    def _landed(self, header: dict[str, Any]) -> None:
        with self.connection.understanding():
            number = None if header["unit"] is None else int(header["unit"])
            done = [int(one) for one in header["done"]]
            failed = {int(one): problem_from(problem) for one, problem in header["failed"]}
        if number is None:
            self._large_landed(done, failed)
            return
        with self._guard:
            if number not in self.under_way:
                raise self.connection.broken("landed what was not sent")
            payload = self.under_way.pop(number)
            self.flow.give_back(len(payload.data) if payload is not None else 0)
        if payload is None or payload.unit.segment:
            self._piece_landed(payload, done, failed)
        else:
            self._pack_landed(payload, done, failed)
        self.stream.close(number)

    def _large_landed(self, done: list[int], failed: dict[int, Problem]) -> None:
        known = [self.stream.large_done(one) for one in done]
        known += [self.stream.large_failed(one, problem) for one, problem in failed.items()]
        if not all(known):
            raise self.connection.broken("landed what was not planned")

    def _piece_landed(self, payload: Payload | None, done: list[int], failed: dict[int, Problem]) -> None:
        del payload
        if done or not all(self.stream.large_failed(one, problem) for one, problem in failed.items()):
            raise self.connection.broken("landed what was not planned")

    def _pack_landed(self, payload: Payload, done: list[int], failed: dict[int, Problem]) -> None:
        items = {item.number: position for position, item in enumerate(payload.unit.items)}
        for number in [*done, *failed]:
            position = items.pop(number, None)
            if position is None:
                raise self.connection.broken("landed what was not planned")
            item = payload.unit.items[position]
            if number in failed:
                self.stream.failed(item, failed[number])
            else:
                self.stream.done(item, payload.digests[position])


class Hand(Sender):
    """A further line: its own thread writes, so that no line waits for another."""

    def __init__(self, stream: Landing, connection: Connection, root: bytes, ticket: Any) -> None:
        super().__init__(stream, connection)
        self.ready = False
        self._joined = threading.Event()  # or it failed to
        self._ended = threading.Event()
        self._left = True
        self._made_room = False
        self.taken: dict[int, Payload] = {}
        self._units: queue.SimpleQueue[tuple[int, Payload] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(root, ticket), name="hand", daemon=True).start()

    def _work(self, root: bytes, ticket: Any) -> None:
        try:
            there = {"path": frames.text_of(root), "make": False}
            self.connection.ask_all([("open", there), ("join", {"ticket": ticket})])
            self.ready = True
            threading.Thread(target=self.listen, name="answers", daemon=True).start()
            self._joined.set()
            self.stream.joined()
            while (work := self._units.get()) is not None:
                super()._write(*work)
            self.connection.send(frames.REQUEST, {"do": "landed"})
        except HibaliError as problem:
            if self.ready:  # else there is one line less
                self.lost(problem)
            self._ended.set()
        finally:
            self._joined.set()

    def lost(self, problem: BaseException) -> None:
        """A line that is lost takes no more, and others do its work; nobody is to wait for it."""
        with self._guard:
            first, self.over = not self.over, True
            self.ready = False
        # A lock that went with the first line is found missing by agents of others before we hear of either.
        if first and (is_lost(problem) or getattr(problem, "code", "") == "lease-lost"):
            self._units.put(None)
            self.stream.hand_lost(self)
        elif first:
            super().lost(problem)
        self._ended.set()

    def take_back(self) -> list[tuple[int, Payload]]:
        """What was sent over a line that is lost, and was not answered; once. It stays in `taken` until others have it."""
        with self._guard:
            self.taken = {number: one for number, one in self.under_way.items() if one is not None}
            self.under_way.clear()
            self.flow = Flow()
        return list(self.taken.items())

    def let_go(self) -> None:
        """Nothing more comes."""
        self._units.put(None)

    def _write(self, number: int, payload: Payload) -> None:
        self._made_room = self._made_room or any(item.clear for item in payload.unit.items)
        self._units.put((number, payload))

    def _piece_landed(self, payload: Payload | None, done: list[int], failed: dict[int, Problem]) -> None:
        super()._piece_landed(payload, done, failed)
        if failed:
            self.stream.give_up(next(iter(failed)))
        elif payload is not None:
            self.stream.placed(payload)

    def ended(self, frame: frames.Frame) -> None:
        """The line is through; whether it left something is for the unlocking."""
        self._left = frame.header.get("left") is not False
        self._ended.set()

    def finish(self) -> bool:
        """Wait for its end, after `let_go`; whether it left something."""
        self._joined.wait()
        if self.ready:
            self._ended.wait()
        if self.over:  # what others landed in its place left nothing, but for what had to make room
            return self._made_room
        return self.ready and self._left
