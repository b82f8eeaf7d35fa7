"""Limit the time and the size of answers."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from hibali.http.errors import too_long, too_slow

RESPONSE_SECONDS = 300.0  # for a response without a file's content
_SLOWEST = 1024  # bytes a second that content has to come or go with, or it is taken for silence
PIECE = 1024 * 1024


def request_timeout(content: int, seconds: float = RESPONSE_SECONDS) -> float:
    """Return the timeout in seconds of a request with this much content: a slow connection is not a stalled one."""
    return seconds + content / _SLOWEST


def read_at_most(read: Callable[[int], bytes], most: int, subject: str) -> bytes:
    """Read everything, piece by piece, up to `most` bytes. Raises `IncompleteError("answer-too-long")`."""
    pieces: list[bytes] = []
    size = 0
    while piece := read(min(PIECE, most + 1 - size)):
        size += len(piece)
        if size > most:
            raise too_long(subject, most)
        pieces.append(piece)
    return b"".join(pieces)


class Deadline:
    """A context manager that shuts down watched connections after a time; then `answer-too-slow` is raised.

    A socket's timeout applies to each piece alone: a server that sends a byte per minute never exceeds it.
    """

    def __init__(self, seconds: float, subject: str, *, from_response: bool = False) -> None:
        """`subject` names the server in the error; with `from_response` the time begins when all was sent."""
        self._seconds = seconds
        self._from_response = from_response
        self._subject = subject
        self._connection: Any = None
        self._socket: Any = None
        self._before: Deadline | None = None
        self.is_over = False

    def watch(self, connection: Any) -> None:
        """Watch a connection, whose attribute `sock` (http.client, urllib3) is shut down: as it is now, or when the time is over.

        A connection drops its socket when an answer's headers say that the connection's end ends the answer.
        """
        self._connection, self._socket = connection, getattr(connection, "sock", None)

    @property
    def is_reused(self) -> bool:
        """Whether the watched connection had carried another request before."""
        return getattr(self._connection, "times_used", 1) > 1

    def __enter__(self) -> Self:
        self._before = getattr(_current, "deadline", None)
        _current.deadline = self
        if not self._from_response:
            _watchdog.add(self, time.monotonic() + self._seconds)
        return self

    def await_response(self) -> None:
        """Begin the time of a deadline that is `from_response`."""
        if self._from_response:
            self._from_response = False
            _watchdog.add(self, time.monotonic() + self._seconds)

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        _current.deadline = self._before
        _watchdog.remove(self)
        # An answer that was cut off may appear complete.
        if self.is_over and (problem is None or isinstance(problem, Exception)):
            raise too_slow(self._subject, self._seconds) from None

    def end(self) -> None:
        """Shut down the watched connections: the time is over."""
        self.is_over = True
        for found in (self._socket, getattr(self._connection, "sock", None)):
            if isinstance(found, socket.socket):
                with contextlib.suppress(OSError):
                    # not the shutdown of TLS, which is not thread-safe
                    socket.socket.shutdown(found, socket.SHUT_RDWR)


_current = threading.local()


def watch_current(connection: Any) -> None:
    """Let the current deadline of this thread watch a connection; for libraries that create their own connections."""
    deadline: Deadline | None = getattr(_current, "deadline", None)
    if deadline is not None:
        deadline.watch(connection)


def watched(kind: Any) -> Any:
    """Return a subclass of a urllib3 connection (or pool) class that registers each request with the deadline."""
    if hasattr(kind, "ConnectionCls"):
        return type(kind.__name__, (kind,), {"ConnectionCls": watched(kind.ConnectionCls)})

    def request(self: Any, *arguments: Any, **more: Any) -> Any:
        watch_current(self)
        self.times_used = getattr(self, "times_used", 0) + 1
        return kind.request(self, *arguments, **more)

    def getresponse(self: Any) -> Any:
        watch_current(self)
        deadline: Deadline | None = getattr(_current, "deadline", None)
        if deadline is not None:
            deadline.await_response()
        return kind.getresponse(self)

    return type(kind.__name__, (kind,), {"request": request, "getresponse": getresponse})


class _Watchdog:
    """One thread that ends all deadlines of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._deadlines: list[tuple[float, int, Deadline]] = []
        self._live: set[Deadline] = set()
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def add(self, deadline: Deadline, due: float) -> None:
        with self._changed:
            self._live.add(deadline)
            heapq.heappush(self._deadlines, (due, next(self._numbers), deadline))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="deadlines", daemon=True)
                self._thread.start()
            elif self._deadlines[0][2] is deadline:
                self._changed.notify()

    def remove(self, deadline: Deadline) -> None:
        """Remove a deadline, which then does not end its connections any more."""
        with self._changed:
            self._live.discard(deadline)
            while self._deadlines and self._deadlines[0][2] not in self._live:
                heapq.heappop(self._deadlines)

    def _work(self) -> None:
        with self._changed:
            while True:
                for deadline in self._over():
                    deadline.end()
                wait = self._deadlines[0][0] - time.monotonic() if self._deadlines else None
                self._changed.wait(None if wait is None else max(0.0, wait))

    def _over(self) -> Iterator[Deadline]:
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            deadline = heapq.heappop(self._deadlines)[2]
            if deadline in self._live:
                yield deadline


_watchdog = _Watchdog()
