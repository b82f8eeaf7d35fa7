"""Carry the input and output of several agents over one session, for hosts that allow no second one.

Each stream has a window in each direction, as ssh's channels have (RFC 4254, 5.2): an agent whose output nobody reads
must not block the others. Both ends use this module; it is sent alone, so it imports nothing of hibali.
"""

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, BinaryIO, Callable, Deque, Dict, Union

_HEAD = struct.Struct(">cII")  # kind, number of the stream, length of the content
_COUNT = struct.Struct(">I")
STATUS = struct.Struct(">i")

START = b"s"  # client: the command line of an agent
BYTES = b"b"
READ = b"r"  # how many bytes were taken, so that as many more may come
CLOSED = b"c"  # no more bytes in this direction
ENDED = b"e"  # host: the agent's exit status, and the end of its standard error
KILL = b"k"  # client: kill the agent

WINDOW = 4 * 1024 * 1024  # bytes of one stream that may be on their way in one direction
_PIECE = 256 * 1024
_MOST_CONTENT = _PIECE
_PIPE_BYTES = 1024 * 1024  # Linux's default limit for users
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which the fcntl of Python 3.6 has no name for
_MOST_AGENTS = 64
_ERRORS = 64 * 1024
SILENCE_SECONDS = 90  # the host's end ends after this long without a frame
_REFUSED = 126  # as a shell's status for a program that cannot be run


Content = Union[bytes, bytearray]


class StreamError(Exception):
    """The other end broke the protocol."""


class Stream(object):
    """The bytes of one agent: what arrives is written to `target`; what `source` has is sent while the window allows it."""

    def __init__(self, send: Callable[[bytes, bytes], None], source: BinaryIO, target: BinaryIO) -> None:
        """`send` sends a frame of this stream; it raises OSError once the session is lost."""
        self._send = send
        self._source = source
        self._target = target
        self._changed = threading.Condition()
        self._allowed = WINDOW
        self._arrived: Deque[Content] = deque()
        self._held = 0
        self._is_closed = self._has_ended = False
        self._sender = threading.Thread(target=self._send_all, name="stream out", daemon=True)
        self._sender.start()
        threading.Thread(target=self._write_all, name="stream in", daemon=True).start()

    def arrive(self, content: Content) -> None:
        """Take bytes that arrived; none at the end. Raises `StreamError` for more than the window, or after the end."""
        with self._changed:
            self._held += len(content)
            if self._held > WINDOW or self._is_closed:
                raise StreamError("more bytes than allowed")
            self._is_closed = not content
            self._arrived.append(content)
            self._changed.notify_all()

    def end(self) -> None:
        """Send no more, and close `target` after what arrived."""
        with self._changed:
            self._has_ended = True
            self._arrived.append(b"")
            self._changed.notify_all()

    def allow(self, count: int) -> None:
        """Allow as many bytes more to be sent."""
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    def print(self, content: bytes) -> None:
        """Write bytes that did not arrive over the stream, before any that do."""
        with contextlib.suppress(OSError, ValueError):
            _write(self._target, content)

    def join(self) -> None:
        """Wait until all that `source` had is sent."""
        self._sender.join()

    def _send_all(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while self._waited_for_room():
                content = self._source.read(min(self._allowed, _PIECE))
                if not content:
                    break
                with self._changed:
                    self._allowed -= len(content)
                self._send(BYTES, content)
            self._send(CLOSED, b"")
        with contextlib.suppress(OSError):
            self._source.close()

    def _waited_for_room(self) -> bool:
        """Wait until bytes may be sent; return False if none are needed any more."""
        with self._changed:
            while self._allowed <= 0 and not self._has_ended:
                self._changed.wait()
            return not self._has_ended

    def _write_all(self) -> None:
        is_read = True
        while True:
            with self._changed:
                while not self._arrived:
                    self._changed.wait()
                content = self._arrived.popleft()
                self._held -= len(content)
            if not content:
                break
            try:
                if is_read:
                    _write(self._target, content)
            except (OSError, ValueError):
                is_read = False  # the agent, or the client, needs no more; the rest is dropped
            with contextlib.suppress(OSError, ValueError):
                self._send(READ, _COUNT.pack(len(content)))
        with contextlib.suppress(OSError):
            self._target.close()


class Session(ABC):
    """The streams of one session, at either end."""

    def __init__(self, source: BinaryIO, target: BinaryIO) -> None:
        """`source` and `target` are the session's, unbuffered."""
        self._source = source
        self._target = target
        self.lock = threading.Lock()
        self.streams: Dict[int, Stream] = {}

    def send(self, kind: bytes, number: int, content: Content = b"") -> None:
        """Send one frame; raises OSError once the session is lost."""
        with self.lock:
            self.write(kind, number, content)

    def write(self, kind: bytes, number: int, content: Content = b"") -> None:
        """Do the same; the caller has the lock."""
        _write(self._target, _HEAD.pack(kind, number, len(content)))
        _write(self._target, content)

    def receive_all(self) -> None:
        """Handle what arrives until the session ends. Raises OSError, `StreamError`."""
        while True:
            head = self._read(_HEAD.size)
            if not head:
                return
            if len(head) < _HEAD.size:
                raise StreamError("the session ended within a frame")
            kind, number, length = _HEAD.unpack(bytes(head))
            if length > _MOST_CONTENT:
                raise StreamError("a frame is larger than allowed")
            content = self._read(length)
            if len(content) < length:
                raise StreamError("the session ended within a frame")
            if kind == READ and length != _COUNT.size:
                raise StreamError("a count of another size")
            stream = self.streams.get(number)
            if kind not in (BYTES, READ, CLOSED):
                self.handle(kind, number, content)
            elif stream is None:
                continue  # it has ended
            elif kind == READ:
                stream.allow(_COUNT.unpack(bytes(content))[0])
            elif kind == CLOSED or content:
                stream.arrive(content if kind == BYTES else b"")

    @abstractmethod
    def handle(self, kind: bytes, number: int, content: Content) -> None:
        """Handle a frame that is only for this end. Raises `StreamError` for others."""

    def _read(self, length: int) -> bytearray:
        """Read this many bytes; fewer at the end of the session."""
        content = bytearray(length)
        view = memoryview(content)
        while view:
            count = self.wait_and_read(view)
            if not count:
                return content[: length - len(view)]
            view = view[count:]
        return content

    def wait_and_read(self, view: memoryview) -> int:
        """Read as many bytes as there are; 0 at the end of the session."""
        count = self._source.readinto(view)  # type: ignore[attr-defined]
        return int(count or 0)


class AgentsSession(Session):
    """The end at the host: it starts the agents."""

    def __init__(self, source: BinaryIO, target: BinaryIO) -> None:
        super(AgentsSession, self).__init__(source, target)
        self._agents: Dict[int, Any] = {}

    def wait_and_read(self, view: memoryview) -> int:
        """See Session; the client sends something from time to time."""
        if not select.select([self._source], [], [], SILENCE_SECONDS)[0]:
            raise StreamError("the client sent nothing for too long")
        return super(AgentsSession, self).wait_and_read(view)

    def handle(self, kind: bytes, number: int, content: Content) -> None:
        """See Session."""
        if kind == START:
            self._start(number, content)
        elif kind == KILL:
            self._kill(number)
        else:
            raise StreamError("unknown kind of frame")

    def _start(self, number: int, command: Content) -> None:
        if number in self._agents:
            raise StreamError("an agent with the number of another one")
        try:
            if len(self._agents) >= _MOST_AGENTS:
                raise OSError(0, "one session has too many agents")
            self._run(number, bytes(command))
        except (OSError, RuntimeError) as problem:  # a login node may limit processes and threads
            self.send(ENDED, number, STATUS.pack(_REFUSED) + str(problem).encode("utf-8", "replace"))

    def _run(self, number: int, command: bytes) -> None:
        agent: Any = subprocess.Popen(
            ["sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        for pipe in (agent.stdin, agent.stdout):
            with contextlib.suppress(OSError):  # the limit of the system
                fcntl.fcntl(pipe, _SET_PIPE_SIZE, _PIPE_BYTES)

        def send(kind: bytes, part: Content) -> None:
            self.send(kind, number, part)

        self._agents[number] = agent
        stream = self.streams[number] = Stream(send, agent.stdout, agent.stdin)
        threading.Thread(target=self._watch, args=(number, agent, stream), name="agent", daemon=True).start()

    def _watch(self, number: int, agent: Any, stream: Stream) -> None:
        """Report the agent's end, after all its output."""
        errors = bytearray()
        while True:
            part = agent.stderr.read(4096)
            if not part:
                break
            errors += part
            del errors[:-_ERRORS]
        agent.stderr.close()
        agent.wait()
        stream.join()
        stream.end()
        with contextlib.suppress(OSError):
            self.send(ENDED, number, STATUS.pack(agent.returncode) + bytes(errors))
        del self.streams[number], self._agents[number]

    def _kill(self, number: int) -> None:
        agent, stream = self._agents.get(number), self.streams.get(number)
        if agent is not None and agent.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(agent.pid, signal.SIGKILL)
        if stream is not None:
            stream.end()


def serve(nonce: str) -> None:
    """Start agents for one client until it disconnects; they end with their input."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    source, target = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    try:
        _write(target, nonce.encode("ascii"))
        AgentsSession(source, target).receive_all()
    except (OSError, StreamError) as problem:
        sys.stderr.write("hibali agents: {}\n".format(problem))
    os._exit(0)  # threads may wait for agents


def _write(target: BinaryIO, content: Content) -> None:
    view = memoryview(content)
    while view:
        view = view[target.write(view) :]
