"""The sha256 of a file that arrives in pieces: read back along what is there without a gap, by a thread of its own."""

import hashlib
import os
import threading
from typing import Callable, Dict, List, Optional

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
        self._changed = threading.Condition()
        self._given_up = False
        self._failure: Optional[Exception] = None
        self._digest: Optional[str] = None
        self._thread = threading.Thread(target=self._run, name="frontier", daemon=True)
        self._thread.start()

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

    def _run(self) -> None:
        try:
            self._hash()
        except Exception as problem:  # noqa: BLE001  # raised again by whoever waits
            self._failure = problem
        finally:
            os.close(self._descriptor)

    def _hash(self) -> None:
        summed = hashlib.sha256()
        position = good = 0
        while position < self._size:
            stop = min(self._size, (position // MARK_BYTES + 1) * MARK_BYTES)
            if not self._wait_for(stop):
                raise MismatchError("given up", good)
            while position < stop:
                chunk = os.pread(self._descriptor, min(_CHUNK, stop - position), position)
                if not chunk:
                    raise MismatchError("what was there is gone", good)
                summed.update(chunk)
                position += len(chunk)
            expected = self._known.get(position)
            if expected is not None and expected != summed.hexdigest():
                raise MismatchError("what was there from an earlier time is not what it was", good)
            good = position
            if expected is None and position < self._size:
                self._mark((position, summed.hexdigest()))
        self._digest = summed.hexdigest()

    def _wait_for(self, stop: int) -> bool:
        with self._changed:
            while self._there < stop and not self._given_up:
                self._changed.wait()
            return not self._given_up
