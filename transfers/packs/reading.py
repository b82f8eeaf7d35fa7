"""Reading members of packs as if they were files: neighbours in a tar file together, each judged by its digest."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hibali.errors import IncompleteError
from transfers.entry import Proof
from transfers.packs.index import place_of
from transfers.packs.place import PackedPlace, Range
from transfers.store import SEGMENT_BYTES, Payload, Problem, Unit

_AHEAD = 16  # so many units without a byte in them may be held
_GAP = 64 * 1024  # what lies between two members is read along rather than asked around
_CORRUPT = Problem("corrupt", "its bytes in the tar file are not those that the index tells")


@dataclass(slots=True)
class _Part:
    """Where one item's bytes are in a range that is read."""

    position: int
    start: int
    length: int


@dataclass(slots=True)
class _Asked:
    """One range of a unit and the items in it."""

    wanted: Range
    parts: list[_Part] = field(default_factory=list)


@dataclass(slots=True)
class _Pending:
    """A unit whose ranges are under way."""

    unit: Unit
    left: int
    contents: dict[int, Any] = field(default_factory=dict)
    problems: dict[int, Problem] = field(default_factory=dict)


class MemberReading:
    """One reading; used once."""

    def __init__(self, place: PackedPlace, *, judge: bool = True) -> None:
        """Without `judge` the digests told are those of the bytes as they are, whatever the index says."""
        self._place = place
        self._judge = judge
        self._sums: dict[int, tuple[int, Any]] = {}
        self._failed: set[int] = set()

    def run(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store.read."""
        pending: deque[_Pending] = deque()
        asked: deque[tuple[_Pending, _Asked]] = deque()

        def ranges() -> Iterator[Range]:
            for unit in units:
                wanted = _ranges_of(unit)
                if not wanted and len(pending) >= _AHEAD:
                    # without a question whoever asks ahead would not stop
                    anything = self._place.anything()
                    wanted = [] if anything is None else [_Asked(anything)]
                pending.append(_Pending(unit, len(wanted)))
                for one in wanted:
                    asked.append((pending[-1], one))
                    yield one.wanted

        answers = self._place.read(ranges())
        while True:
            answer = next(answers, None)
            if answer is not None:
                _take(*asked.popleft(), answer)
            while pending and not pending[0].left:
                yield self._payload(pending.popleft())
            if answer is None:
                break
        if pending:
            raise IncompleteError("protocol", "the store gave less than it was asked for")

    def _payload(self, pending: _Pending) -> Payload:
        unit = pending.unit
        payload = Payload(unit, b"", [], [], [], dict(pending.problems))
        contents: list[Any] = []
        for position, item in enumerate(unit.items):
            content = pending.contents.get(position, b"")
            digest, proof = None, Proof.DIGEST
            if item.carries and position not in payload.problems:
                found = self._prove(unit, position, content)
                if isinstance(found, Problem):
                    payload.problems[position] = found
                else:
                    digest, proof = found
            if position in payload.problems:
                content = b""
                if unit.segment:
                    self._failed.add(item.number)
            contents.append(content)
            payload.sizes.append(len(content))
            payload.digests.append(digest)
            payload.proofs.append(proof)
        payload.data = contents[0] if len(contents) == 1 else b"".join(contents)
        return payload

    def _prove(self, unit: Unit, position: int, content: Any) -> tuple[str | None, Proof] | Problem:
        """What was recorded when it was packed is what it has to be; whoever lands the bytes compares them with that, too."""
        item = unit.items[position]
        known = item.entry.digest
        if not unit.segment:
            found = hashlib.sha256(content).hexdigest()
            return self._compared(found, known)
        if unit.piece:
            return None, Proof.NONE
        if item.number in self._failed:
            return Problem("earlier-segment", "an earlier segment of this file failed")
        if unit.offset == 0:
            self._sums[item.number] = (0, hashlib.sha256())
        reached, summed = self._sums.pop(item.number, (-1, None))
        if reached != unit.offset:  # the rest stands at the target already
            return (known if unit.last else None), Proof.RECORDED
        summed.update(content)
        if unit.last:
            return self._compared(summed.hexdigest(), known)
        self._sums[item.number] = (reached + len(content), summed)
        return None, Proof.RECORDED

    def _compared(self, found: str, known: str | None) -> tuple[str | None, Proof] | Problem:
        if self._judge and found != known:
            return _CORRUPT
        return found, Proof.RECORDED


def _ranges_of(unit: Unit) -> list[_Asked]:
    """The ranges that hold a unit, each of one tar file, with what lies in between where that is little."""
    if unit.segment:
        name, start = place_of(unit.items[0].entry)
        return [_Asked(Range(name, start + unit.offset, unit.length), [_Part(0, 0, unit.length)])]
    places = sorted(
        (*place_of(item.entry), position)
        for position, item in enumerate(unit.items)
        if item.carries and item.entry.size
    )
    found: list[_Asked] = []
    for name, offset, position in places:
        size = unit.items[position].entry.size
        before = found[-1].wanted if found else None
        if before is not None and _is_near(before, name, offset, size):
            end = max(before.offset + before.length, offset + size)
            found[-1].wanted = before._replace(length=end - before.offset)
        else:
            found.append(_Asked(Range(name, offset, size)))
        found[-1].parts.append(_Part(position, offset - found[-1].wanted.offset, size))
    return found


def _is_near(before: Range, name: str, offset: int, size: int) -> bool:
    near = offset - (before.offset + before.length) <= _GAP
    return before.pack == name and near and offset + size - before.offset <= SEGMENT_BYTES


def _take(pending: _Pending, asked: _Asked, answer: Payload | Problem) -> None:
    """What came of one range."""
    pending.left -= 1
    for part in asked.parts:
        if isinstance(answer, Problem):
            pending.problems[part.position] = answer
        else:
            content = memoryview(answer.data)[part.start : part.start + part.length]
            pending.contents[part.position] = content
