"""Send only the new tails of append-only files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hibali.events import Carried
from hibali.retry import Pace
from transfers.model.store import Appender
from transfers.model.units import WINDOW_BYTES, Problem, Tail, problem_from

_PIECE_BYTES = 4 * 1024 * 1024
_AHEAD = 64


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result for a tail: the sha256 of the first `tail.entry.size` bytes of the file, or a problem."""

    tail: Tail
    digest: str | None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a tail that was sent and not answered yet."""

    tail: Tail
    stop: int
    size: int
    digest: str


def send_tails(
    source: Appender, target: Appender, tails: Iterable[Tail], pace: Pace
) -> Iterator[Carried | AppendResult]:
    """Send all tails; yield an `AppendResult` for each, in order. Raises the errors of a connection.

    After a failed piece, the target rejects the next pieces of the file, because it is too short.
    """
    return _AppendRun(source, target, pace).run(tails)


class _AppendRun:
    """One run; it keeps pieces without an answer, oldest first."""

    def __init__(self, source: Appender, target: Appender, pace: Pace) -> None:
        self._source = source
        self._target = target
        self._pace = pace
        self._pending: deque[_Piece] = deque()
        self._held = 0
        self._failed: Problem | None = None

    def run(self, tails: Iterable[Tail]) -> Iterator[Carried | AppendResult]:
        for tail in tails:
            problem = None
            for start in range(tail.start, tail.entry.size, _PIECE_BYTES) or (tail.start,):
                problem = self._send(tail, start)
                if problem is not None:
                    break
                yield from self._read_replies(WINDOW_BYTES, _AHEAD)
            if problem is not None:
                yield from self._read_replies(0)
                yield AppendResult(tail, None, self._failed or problem)
                self._failed = None
        yield from self._read_replies(0)

    def _send(self, tail: Tail, start: int) -> Problem | None:
        """Read a piece and send it; return the source's problem if it cannot be read."""
        stop = min(tail.entry.size, start + _PIECE_BYTES)
        frame = self._source.read(tail.name, start, stop)
        if frame.header["problem"] is not None:
            return problem_from(frame.header["problem"])
        self._pace.acquire(len(frame.body))
        self._target.add(tail, start, frame)
        self._held += len(frame.body)
        self._pending.append(_Piece(tail, stop, len(frame.body), frame.header["after"]))
        return None

    def _read_replies(self, size: int, count: int = 0) -> Iterator[Carried | AppendResult]:
        """Read answers until at most this many bytes and pieces are pending."""
        while self._pending and (self._held > size or len(self._pending) > count):
            piece = self._pending.popleft()
            self._held -= piece.size
            problem = self._target.next_result()
            self._failed = self._failed or problem  # the first one is the cause of the others
            if self._failed is None:
                yield Carried(piece.size)
            if piece.stop >= piece.tail.entry.size:
                yield AppendResult(piece.tail, None if self._failed else piece.digest, self._failed)
                self._failed = None
