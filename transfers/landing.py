"""Landing a stream of payloads through an agent: one thread sends within a window, the other takes the answers."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hibali.errors import HibaliError
from transfers.agent import frames
from transfers.connection import Connection
from transfers.entry import Proof
from transfers.store import WINDOW_BYTES, Item, Landed, Payload, Problem
from transfers.units import data_header, unit_header


@dataclass(slots=True)
class _Sent:
    """A unit under way."""

    size: int
    items: dict[int, Item]
    digests: dict[int, str | None] = field(default_factory=dict)


class LandingStream:
    """One landing session with an agent; used once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._room = threading.Condition()
        self._under_way: dict[int, _Sent] = {}
        self._held = 0
        self._stopped = False
        self._failure: BaseException | None = None

    def run(self, payloads: Iterable[Payload]) -> Generator[Landed, None, None]:
        """Yield what became of each item; an error of either side ends it after the other side has stopped."""
        next(self._connection.ask_many("land"))
        sender = threading.Thread(target=self._send, args=(payloads,), name="send", daemon=True)
        sender.start()
        try:
            yield from self._answers()
        finally:
            self._stop()
            sender.join()
        if self._failure is not None:
            raise self._failure

    def _answers(self) -> Iterator[Landed]:
        while True:
            frame = self._connection.receive()
            if frame.kind == frames.END:
                return
            if frame.kind != frames.LANDED:
                raise self._connection.broken(f"sent {frame.kind!r} while landing")
            yield from self._landed(frame)

    def _landed(self, frame: frames.Frame) -> Iterator[Landed]:
        with self._room:
            with self._connection.understanding():
                sent = self._under_way.pop(frame.header["unit"], None)
            if sent is None:
                raise self._connection.broken("landed what was not sent")
            self._held -= sent.size
            self._room.notify_all()
        with self._connection.understanding():
            landed = [*self._done(sent, frame.header["done"]), *self._failed(sent, frame.header["failed"])]
        yield from landed

    def _done(self, sent: _Sent, numbers: Iterable[Any]) -> Iterator[Landed]:
        for number in numbers:
            item = sent.items.pop(number, None)
            if item is None:
                raise self._connection.broken("landed what was not planned")
            yield Landed(item, sent.digests.get(number), Proof.DIGEST)

    def _failed(self, sent: _Sent, failures: Iterable[Any]) -> Iterator[Landed]:
        for number, (code, message, again) in failures:
            item = sent.items.pop(number, None)
            if item is None:
                raise self._connection.broken("failed what was not planned")
            yield Landed(item, None, Proof.NONE, problem=Problem(str(code), str(message), again=bool(again)))

    def _send(self, payloads: Iterable[Payload]) -> None:
        """Runs in its own thread, so the source is read here too."""
        try:
            for number, payload in enumerate(payloads):
                if not self._admit(number, payload):
                    return
                self._connection.send(frames.UNIT, unit_header(payload.unit, number))
                self._connection.send(frames.DATA, data_header(payload, number), payload.data)
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that takes the answers
            self._failure = problem
        try:
            if not self._stopped:
                self._connection.send(frames.REQUEST, {"do": "landed"})
        except HibaliError as problem:
            self._failure = self._failure or problem

    def _admit(self, number: int, payload: Payload) -> bool:
        """Wait for room in the window; False when the other side has stopped."""
        size = len(payload.data)
        unit = payload.unit
        items = {item.number: item for item in unit.items}
        digests = {item.number: payload.digests[position] for position, item in enumerate(unit.items)}
        with self._room:
            while self._held and self._held + size > WINDOW_BYTES and not self._stopped:
                self._room.wait()
            if self._stopped:
                return False
            self._held += size
            self._under_way[number] = _Sent(size, items, digests)
            return True

    def _stop(self) -> None:
        with self._room:
            self._stopped = True
            self._room.notify_all()
