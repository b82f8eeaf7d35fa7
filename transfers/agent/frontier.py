"""The sha256 of a file that arrives in pieces: read back along what is there without a gap, by a thread of its own."""

import hashlib
import os
import threading
from typing import Any, Callable, Dict, Iterator, Optional

from transfers.agent.begun import MARK_BYTES, Begun, Part

_CHUNK = 1024 * 1024


class MismatchError(Exception):
    """What is there is not what the source hashed; bytes up to `good` were found to be right."""

    def __init__(self, message: str, good: int = 0) -> None:
        super(MismatchError, self).__init__(message)
        self.good = good


class Frontier(object):
    """One partial file. Pieces are told in any order; every `MARK_BYTES` the digest so far is noted as a mark.

    The marks and blocks of an earlier operation are checked first, and only then does what follows get marks. As that
    may take long, what arrives meanwhile is noted in blocks by another thread: an interruption costs none of it.
    """

    def __init__(self, descriptor: int, part: Part, begun: Begun) -> None:
        """`descriptor` is duplicated; what `part` tells of is taken to be there."""
        self._descriptor = os.dup(descriptor)
        self._part = part
        self._size = part.size
        self._marks = dict(part.marks)
        self._blocks = {start: (stop, digest) for start, stop, digest in part.blocks}
        self._begun = begun
        self._there = self._known = part.there
        self._reached = 0  # how far all is known to be right
        self._pieces: Dict[int, int] = {}
        self._changed = threading.Condition()
        self._given_up = False
        self._failure: Optional[Exception] = None
        self._digest: Optional[str] = None
        self._threads = [self._start(self._hash)]
        if self._known:
            self._threads.append(self._start(self._note_blocks))

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(work,), name="frontier", daemon=True)
        thread.start()
        return thread

    def place(self, offset: int, length: int) -> bool:
        """A piece is there; True once the file is there in whole. A piece that overlaps another is a ValueError."""
        with self._changed:
            if offset < self._there or length <= 0 or offset + length > self._size or offset in self._pieces:
                raise ValueError("a piece that was not asked for")
            self._pieces[offset] = length
            while self._there in self._pieces:
                self._there += self._pieces.pop(self._there)
            self._changed.notify_all()
            return self._there == self._size

    def finish(self) -> str:
        """The sha256 in hexadecimal of the whole; raises `MismatchError`, OSError. Waits for it."""
        self._end()
        if self._failure is not None:
            raise self._failure
        assert self._digest is not None
        return self._digest

    def give_up(self) -> None:
        """End the threads; safe to call twice, and after `finish`."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()
        self._end()

    def _end(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as problem:  # noqa: BLE001  # raised again by whoever waits
            with self._changed:
                self._failure = self._failure or problem
                self._given_up = True
                self._changed.notify_all()

    def _hash(self) -> None:
        summed = hashlib.sha256()
        position = 0
        while position < self._size:
            stop = min(self._size, (position // MARK_BYTES + 1) * MARK_BYTES)
            end, wanted = self._blocks.get(position, (0, ""))
            block = hashlib.sha256() if end == stop else None
            if not self._wait_for(stop):
                raise MismatchError("given up", self._reached)
            for chunk in self._read(position, stop):
                summed.update(chunk)
                if block is not None:
                    block.update(chunk)
            position = stop
            expected = self._marks.get(position)
            if (expected is not None and expected != summed.hexdigest()) or (
                block is not None and block.hexdigest() != wanted
            ):
                raise MismatchError("what was there from an earlier time is not what it was", self._reached)
            self._reached = position
            if expected is None and position < self._size:
                self._begun.mark(self._part, (position, summed.hexdigest()))
        self._digest = summed.hexdigest()

    def _note_blocks(self) -> None:
        """Until the marks have nearly come as far."""
        position = self._known
        while self._reached + MARK_BYTES < position and position + MARK_BYTES < self._size:
            stop = position + MARK_BYTES
            if not self._wait_for(stop):
                return
            block = hashlib.sha256()
            for chunk in self._read(position, stop):
                block.update(chunk)
            self._begun.block(self._part, (position, stop, block.hexdigest()))
            position = stop

    def _read(self, position: int, stop: int) -> Iterator[Any]:
        while position < stop:
            chunk = os.pread(self._descriptor, min(_CHUNK, stop - position), position)
            if not chunk:
                raise MismatchError("what was there is gone", self._reached)
            position += len(chunk)
            yield chunk

    def _wait_for(self, stop: int) -> bool:
        with self._changed:
            while self._there < stop and not self._given_up:
                self._changed.wait()
            return not self._given_up
