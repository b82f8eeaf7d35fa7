"""Limit the answers of servers: bytes that are kept in memory, and seconds until one is whole."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from hibali.errors import IncompleteError, TryLaterError

MOST_ANSWER = 64 * 1024 * 1024  # of an answer that is kept in memory
MOST_ERROR = 64 * 1024  # of what a server says to an error; the rest is not read
ANSWER_SECONDS = 300.0  # for an answer that holds no file's content
_SLOWEST = 1024  # bytes a second that content has to come or go with, or it is taken for silence
_PIECE = 1024 * 1024


def too_long(about: str, most: int) -> IncompleteError:
    """The error for an answer of more than `most` bytes."""
    return IncompleteError(
        "answer-too-long",
        f"the server's answer has more than {most} bytes, and was not read to its end",
        about=about,
        hint="Is this the server that you mean? Report it to whoever runs it",
    )


def too_slow(about: str, seconds: float) -> TryLaterError:
    """The error for an answer that was not whole after `seconds`."""
    return TryLaterError(
        "answer-too-slow",
        f"the server's answer was not complete after {seconds:.0f} s",
        about=about,
        hint="Run the same command again later",
        transient=False,
    )


def patience_for(content: int, seconds: float = ANSWER_SECONDS) -> float:
    """Seconds for a request that carries so many bytes of content: a slow line is none that hangs."""
    return seconds + content / _SLOWEST


def read_at_most(read: Callable[[int], bytes], most: int, about: str) -> bytes:
    """All that `read` gives, piece by piece. Raises `IncompleteError("answer-too-long")`."""
    pieces: list[bytes] = []
    size = 0
    while piece := read(min(_PIECE, most + 1 - size)):
        size += len(piece)
        if size > most:
            raise too_long(about, most)
        pieces.append(piece)
    return b"".join(pieces)


class Deadline:
    """While inside, the connections that are watched are shut down when the time is over; then `answer-too-slow` is raised.

    A socket's own timeout counts the silence before each piece alone: a server that sends a byte a minute is never silent.
    """

    def __init__(self, seconds: float, about: str) -> None:
        """`about` names the server in the error."""
        self._seconds = seconds
        self._about = about
        self._connection: Any = None
        self._socket: Any = None
        self._before: Deadline | None = None
        self.is_over = False

    def watch(self, connection: Any) -> None:
        """Its attribute `sock` is what is shut down (http.client, urllib3): as it is now, or when the time is over.

        A connection forgets its socket when an answer's head says that its end is the answer's.
        """
        self._connection, self._socket = connection, getattr(connection, "sock", None)

    def __enter__(self) -> Self:
        self._before = getattr(_current, "deadline", None)
        _current.deadline = self
        _watchdog.add(self, time.monotonic() + self._seconds)
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        _current.deadline = self._before
        _watchdog.remove(self)
        # An answer that was cut off may look like one that ended.
        if self.is_over and (problem is None or isinstance(problem, Exception)):
            raise too_slow(self._about, self._seconds) from None

    def end(self) -> None:
        """The time is over."""
        self.is_over = True
        for found in (self._socket, getattr(self._connection, "sock", None)):
            if isinstance(found, socket.socket):
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(
                        found, socket.SHUT_RDWR
                    )  # not TLS's own, which is not for two threads


_current = threading.local()


def watch_current(connection: Any) -> None:
    """Let the deadline that this thread is inside of watch a connection; for libraries that make their own."""
    deadline: Deadline | None = getattr(_current, "deadline", None)
    if deadline is not None:
        deadline.watch(connection)


def watched(kind: Any) -> Any:
    """A subclass of one of urllib3's classes of connections (or pools of them) that tells the deadline of each request."""
    if hasattr(kind, "ConnectionCls"):
        return type(kind.__name__, (kind,), {"ConnectionCls": watched(kind.ConnectionCls)})

    def request(self: Any, *words: Any, **more: Any) -> Any:
        watch_current(self)
        return kind.request(self, *words, **more)

    def getresponse(self: Any) -> Any:
        watch_current(self)
        return kind.getresponse(self)

    return type(kind.__name__, (kind,), {"request": request, "getresponse": getresponse})


class _Watchdog:
    """One thread for all deadlines of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Deadline]] = []
        self._live: set[Deadline] = set()
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def add(self, deadline: Deadline, due: float) -> None:
        with self._changed:
            self._live.add(deadline)
            heapq.heappush(self._due, (due, next(self._numbers), deadline))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="deadlines", daemon=True)
                self._thread.start()
            elif self._due[0][2] is deadline:
                self._changed.notify()

    def remove(self, deadline: Deadline) -> None:
        """After this it does not end."""
        with self._changed:
            self._live.discard(deadline)
            while self._due and self._due[0][2] not in self._live:
                heapq.heappop(self._due)

    def _work(self) -> None:
        with self._changed:
            while True:
                for deadline in self._over():
                    deadline.end()
                wait = self._due[0][0] - time.monotonic() if self._due else None
                self._changed.wait(None if wait is None else max(0.0, wait))

    def _over(self) -> Iterator[Deadline]:
        while self._due and self._due[0][0] <= time.monotonic():
            deadline = heapq.heappop(self._due)[2]
            if deadline in self._live:
                yield deadline


_watchdog = _Watchdog()
