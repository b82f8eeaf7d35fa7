"""Control transfers between two remote sites: both agents reply over one channel, data flows directly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from hibali.errors import HibaliError, UsageError
from transfers.agent import protocol
from transfers.model.entry import Entry
from transfers.model.units import MOST_BYTES, Item, Payload, Problem, Unit, problem_from
from transfers.pipeline.batches import item_header, payload_from_header, unit_bytes, unit_header
from transfers.pipeline.receiving import LargeFile, Receiver
from transfers.remote.connection import Connection

_LEAST_BYTES = 512 * 1024  # a unit counts for at least this much: its headers take memory, too
_DIGEST = re.compile(r"[0-9a-f]{64}")
_WRONG_TARGET_CODES = frozenset({"vanished", "not-a-folder", "lease-lost", "denied"})


class DirectReceiver(Receiver[Unit]):
    """One transfer. A unit has three numbers: its own, and a large file's begin and digest."""

    def __init__(
        self,
        connection: Connection,
        root: bytes,
        token: str,
        *,
        required: bool,
        read_as: Callable[[Entry], bytes] | None,
        passed: Callable[[Unit], None],
    ) -> None:
        """`connection` leads to the source's agent and through it to the target's, where `token` identifies our lock at `root`.

        `read_as` returns the source's name of a file, if it has another one there; `required` tells
        whether the user chose this way; `passed` is called for each unit that arrived.
        """
        super().__init__(connection, root, lambda: MOST_BYTES)
        self._token = token
        self._required = required
        self._read_as = read_as
        self._passed = passed
        self._units: dict[int, Unit] = {}
        self._read: dict[int, Payload] = {}
        self.left = True

    def _send(self, values: Iterable[Unit]) -> None:
        """See Receiver; only requests are sent."""
        try:
            self._started.wait()  # otherwise the source's agent could reply before the target's is ready
            for number, unit in enumerate(values):
                if not self._request(number * 3, unit):
                    return
            if self._window.wait_empty():
                self._forward({"do": "finish_receiving"})
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that reads the results
            self._results.put(problem)

    def _forward(self, request: dict[str, Any]) -> None:
        self._control.send(protocol.REQUEST, {"do": "forward", "request": request})

    def _request(self, number: int, unit: Unit) -> bool:
        """Request that a unit is read and sent; False when all must stop."""
        if unit.segment:
            return self._request_piece(number, unit)
        alone = any(one.clear for one in unit.items)
        if alone and not self._window.wait_empty():
            return False
        return self._request_unit(number, unit, {}) and not (alone and not self._window.wait_empty())

    def _request_piece(self, number: int, unit: Unit) -> bool:
        item = unit.items[0]
        with self._guard:
            if item.number in self._ended:
                return True
            fresh = item.number not in self._large
            large = self._large.setdefault(item.number, LargeFile(item, apart=unit.offset > 0))
        if fresh and not self._begin_large(number, unit, apart=large.apart):
            return False
        return item.number in self._ended or self._request_unit(number, unit, {"piece": large.apart})

    def _begin_large(self, number: int, unit: Unit, *, apart: bool) -> bool:
        """Announce a large file: a resumed one must be ready first, and its source is hashed meanwhile."""
        if not self._window.open(number + 1, 0):
            return False
        item = unit.items[0]
        header = {"unit": number + 1, "item": item_header(item), "from": unit.offset}
        self._control.send(protocol.FILE, header)
        if not apart:
            return True
        if not self._window.wait_closed(number + 1):
            return False
        return item.number in self._ended or self._request_unit(number + 2, unit, {"digest": True}, size=0)

    def _request_unit(
        self, number: int, unit: Unit, more: dict[str, Any], *, size: int | None = None
    ) -> bool:
        weight = max(unit_bytes(unit), _LEAST_BYTES) if size is None else size
        piece_of = unit.items[0].number if unit.segment and size is None else None
        if not self._window.open(number, weight, of=piece_of, offset=unit.offset):
            return False
        with self._guard:
            self._units[number] = unit
        header = {**unit_header(unit, number), **more}
        if self._read_as is not None:
            for fields, item in zip(header["items"], unit.items, strict=True):
                fields["read"] = protocol.text_of(self._read_as(item.entry))
        self._control.send(protocol.UNIT, header)
        return True

    def _listen(self) -> None:
        """See Receiver."""
        try:
            self._begin()
            self._started.set()
            while (frame := self._control.receive()).kind != protocol.END:
                with self._control.understanding():
                    self._receive_frame(frame)
            self.left = frame.header.get("left") is not False
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that reads the results
            self._results.put(problem)
        else:
            self.over = True
            self._results.put(None)
        finally:
            self._started.set()
            self._window.stop()

    def _begin(self) -> None:
        """Start receiving under the lock that this process holds; without that lock, it is another folder."""
        try:
            root = protocol.text_of(self._root)
            self._control.request("forward", request={"do": "open", "path": root, "make": False})
            self._forward({"do": "start_receiving", "token": self._token, "digests": True})
            reply = next(self._control.replies_to("start_receiving"))
        except HibaliError as problem:
            if not self._required or problem.code not in _WRONG_TARGET_CODES:
                raise
            raise UsageError(
                "another-place",
                f"the folder that the source's site reaches is not the target: it has no lock of this operation ({problem.message})",
                subject=problem.subject,
                hint="Correct `reached_from` of the target's site, or leave out --direct.",
            ) from None
        with self._control.understanding():
            self._partial_files.read(reply.header)
            self.fresh = bool(reply.header["walked"])

    def _receive_frame(self, frame: protocol.Frame) -> None:
        if frame.kind == protocol.DATA:
            number = int(frame.header["unit"])
            if number % 3 == 2:  # a digest's number
                self._receive_digest(number, frame.header)
            else:
                self._receive_read(number, frame.header)
        elif frame.kind == protocol.COMMITTED:
            self._receive_committed(frame.header)
        else:
            raise self._control.broken(f"sent {frame.kind!r} while receiving")

    def _receive_digest(self, number: int, header: dict[str, Any]) -> None:
        """Receive the source's digest of a whole file."""
        with self._guard:
            file = self._units.pop(number).items[0].number
            large = self._large.get(file)
        problem = header["problems"].get("0")
        if large is not None and problem is not None:
            self.abandon(file)
            self.large_failed(file, problem_from(problem))
        elif large is not None:
            digest = header["digests"][0]
            if not _DIGEST.fullmatch(digest):
                raise self._control.broken("sent a file without its digest")
            large.digest = digest
            self._control.send(protocol.PLACED, {"number": file, "digest": digest})
        self._window.close(number)

    def _receive_read(self, number: int, header: dict[str, Any]) -> None:
        """Receive the reply that the source read a unit, which it then sends unless reading failed."""
        with self._guard:
            unit = self._units[number]
            large = self._large.get(unit.items[0].number) if unit.segment else None
        reply = payload_from_header(unit, header, self._control, digested=large is None or not large.apart)
        if not unit.segment:
            self._read[number] = reply
            return
        if reply.problems:
            self.abandon(unit.items[0].number)
            self.large_failed(unit.items[0].number, reply.problems[0])
            self._close(number)
        elif large is not None and unit.last and not large.apart:
            large.digest = reply.digests[0]

    def _receive_committed(self, header: dict[str, Any]) -> None:
        failed = {int(one): problem_from(found) for one, found in header["failed"]}
        done = {int(one): found for one, found in zip(header["done"], header["digests"], strict=True)}
        if header["unit"] is None:
            self._large_committed(done, failed)
            return
        number = int(header["unit"])
        if number % 3 == 1:
            if done or not all(self.large_failed(one, problem) for one, problem in failed.items()):
                raise self._control.broken("committed an item that was not planned")
            self._window.close(number)
            return
        unit = self._units[number]
        if not unit.segment:
            self._pack_committed(self._read.pop(number), done, failed)
        elif done or not all(self.large_failed(one, problem) for one, problem in failed.items()):
            raise self._control.broken("committed an item that was not planned")
        self._passed(unit)
        self._close(number)

    def _close(self, number: int) -> None:
        with self._guard:
            del self._units[number]
        self._window.close(number)

    def _pack_committed(self, reply: Payload, done: dict[int, Any], failed: dict[int, Problem]) -> None:
        items = {item.number: position for position, item in enumerate(reply.unit.items)}
        if items.keys() != done.keys() | failed.keys():
            raise self._control.broken("committed an item that was not planned")
        for number, position in items.items():
            item = reply.unit.items[position]
            if number in failed:
                self.failed(item, failed[number])
            else:
                self._compare(item, reply.digests[position], done[number])

    def _compare(self, item: Item, read: str | None, committed: object) -> None:
        """Report an item that was committed; the digests of both endpoints must be equal."""
        if read != committed:
            raise self._control.broken("committed content that differs from the source")
        self.done(item, read)

    def _large_committed(self, done: dict[int, Any], failed: dict[int, Problem]) -> None:
        known = [self.large_failed(number, problem) for number, problem in failed.items()]
        for number, digest in done.items():
            large = self.end_large(number)
            known.append(number in self._ended)
            if large is not None:
                if large.digest is None:
                    raise self._control.broken("committed a file that was not read completely")
                self._compare(large.item, large.digest, digest)
        if not all(known):
            raise self._control.broken("committed an item that was not planned")
