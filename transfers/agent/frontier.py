"""The sha256 of a file that arrives in pieces: taken from the next piece at hand, or read back by a thread of its own."""

import hashlib
import os
import threading
from typing import Callable, Dict, List, Optional

from transfers.agent import frames
from transfers.agent.begun import MARK_BYTES, Mark

_CHUNK = 1024 * 1024


class MismatchError(Exception):
    """What is there is not what the source hashed; bytes up to `good` were found to be right."""

    def __init__(self, message: str, good: int = 0) -> None:
        super(MismatchError, self).__init__(message)
        self.good = good


class Frontier(object):
    """One partial file. Pieces are told in any order; every `MARK_BYTES` the digest so far is told to `mark`.

    `marks` are those of an earlier operation: they are checked first, and only then does what follows count.
    """

    def __init__(self, descriptor: int, size: int, marks: List[Mark], mark: Callable[[Mark], None]) -> None:
        """`descriptor` is duplicated; what the marks tell of is taken to be there."""
        self._descriptor = os.dup(descriptor)
        self._size = size
        self._known = dict(marks)
        self._mark = mark
        self._there = marks[-1][0] if marks else 0
        self._pieces: Dict[int, int] = {}
        self._summed = hashlib.sha256()
        self._position = 0  # up to here it is summed, by whoever is `busy`
        self._good = 0
        self._busy = False
        self._changed = threading.Condition()
        self._given_up = False
        self._failure: Optional[Exception] = None
        self._digest: Optional[str] = None
        self._thread = threading.Thread(target=self._run, name="frontier", daemon=True)
        self._thread.start()

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
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._digest is not None
        return self._digest

    def give_up(self) -> None:
        """End the thread; safe to call twice, and after `finish`."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()
        self._thread.join()

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
                stop = self._next_stop()
                part = content[: stop - self._position]
                self._add(part, stop)
                content = content[len(part) :]
        finally:
            self._rest()

    def _run(self) -> None:
        try:
            self._hash()
        except Exception as problem:  # noqa: BLE001  # raised again by whoever waits
            self._failure = problem
        finally:
            os.close(self._descriptor)

    def _hash(self) -> None:
        while self._wait_for_more():
            stop = self._next_stop()
            try:
                while self._position < stop:
                    chunk = os.pread(self._descriptor, min(_CHUNK, stop - self._position), self._position)
                    if not chunk:
                        raise MismatchError("what was there is gone", self._good)
                    self._add(chunk, stop)
            finally:
                self._rest()
        self._digest = self._summed.hexdigest()

    def _next_stop(self) -> int:
        return min(self._size, (self._position // MARK_BYTES + 1) * MARK_BYTES)

    def _add(self, content: frames.Body, stop: int) -> None:
        """Sum what follows; at a stop it is compared with what an earlier operation noted, or noted."""
        self._summed.update(content)
        self._position += len(content)
        if self._position < stop:
            return
        expected = self._known.get(stop)
        if expected is not None and expected != self._summed.hexdigest():
            raise MismatchError("what was there from an earlier time is not what it was", self._good)
        self._good = stop
        if expected is None and stop < self._size:
            self._mark((stop, self._summed.hexdigest()))

    def _wait_for_more(self) -> bool:
        """Wait until all up to the next stop is there and ours to sum; False once all is summed."""
        with self._changed:
            while not self._given_up and self._position < self._size:
                if not self._busy and self._there >= self._next_stop():
                    self._busy = True
                    return True
                self._changed.wait()
            if self._position < self._size or self._busy:
                raise MismatchError("given up", self._good)
            return False
