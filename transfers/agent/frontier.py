"""The sha256 of a file that arrives in pieces: taken from the next piece at hand, or read back by a thread of its own."""

import hashlib
import os
import threading
from typing import Any, Callable, Dict, Iterator, Optional

from transfers.agent import frames
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
        self._summed = hashlib.sha256()
        self._position = 0  # how far it is summed, by whoever is busy with it
        self._busy = False
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

    def place(self, offset: int, length: int, content: Optional[frames.Body] = None) -> bool:
        """A piece is there; True once the file is there in whole. A piece that overlaps another is a ValueError.

        With its `content` at hand it is not read back, where it is the next one.
        """
        if content is not None and self._is_next(offset, length):
            self._take(memoryview(content))
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

    def _is_next(self, offset: int, length: int) -> bool:
        """Whether these are the bytes to be summed next; then nobody else sums until `_rest`."""
        with self._changed:
            fits = offset == self._there == self._position and offset + length <= self._size
            if self._busy or self._given_up or not fits:
                return False
            self._busy = True
            return True

    def _rest(self) -> None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    def _take(self, content: memoryview) -> None:
        try:
            while len(content):
                part = content[: self._next_stop() - self._position]
                self._add(part)
                content = content[len(part) :]
        finally:
            self._rest()

    def _hash(self) -> None:
        while self._wait_for_more():
            try:
                self._read_back(self._next_stop())
            finally:
                self._rest()
        self._digest = self._summed.hexdigest()

    def _read_back(self, stop: int) -> None:
        end, wanted = self._blocks.get(self._position, (0, ""))
        block = hashlib.sha256() if end == stop else None
        for chunk in self._read(self._position, stop):
            if block is not None:
                block.update(chunk)
                if self._position + len(chunk) == stop and block.hexdigest() != wanted:
                    raise self._mismatch()
            self._add(chunk)

    def _next_stop(self) -> int:
        return min(self._size, (self._position // MARK_BYTES + 1) * MARK_BYTES)

    def _add(self, content: frames.Body) -> None:
        """Sum what follows; at a stop it is compared with what an earlier operation noted, or noted."""
        stop = self._next_stop()
        self._summed.update(content)
        self._position += len(content)
        if self._position < stop:
            return
        expected = self._marks.get(stop)
        if expected is not None and expected != self._summed.hexdigest():
            raise self._mismatch()
        self._reached = stop
        if expected is None and stop < self._size:
            self._begun.mark(self._part, (stop, self._summed.hexdigest()))

    def _mismatch(self) -> MismatchError:
        return MismatchError("what was there from an earlier time is not what it was", self._reached)

    def _wait_for_more(self) -> bool:
        """Wait until all up to the next stop is there and ours to sum; False once all is summed."""
        with self._changed:
            while not self._given_up and self._position < self._size:
                if not self._busy and self._there >= self._next_stop():
                    self._busy = True
                    return True
                self._changed.wait()
            if self._position < self._size or self._busy:
                raise MismatchError("given up", self._reached)
            return False

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
