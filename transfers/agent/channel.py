"""The agent's end of the line: frames in by a thread with a bounded queue, frames out under a lock."""

import os
import select
import sys
import threading
from collections import deque
from typing import Any, BinaryIO, Deque, Dict, Optional

from transfers.agent import frames
from transfers.agent.buffers import Buffers

SILENCE_SECONDS = 90  # without a frame for this long the client is taken for dead
_QUEUE_BYTES = 32 * 1024 * 1024


class Outlet(object):
    """Where what was read goes."""

    buffers: Buffers

    def send(self, kind: bytes, header: Dict[str, Any], body: frames.Body = b"") -> None:
        """One frame; whoever takes it that is gone is an OSError."""
        raise NotImplementedError


class Channel(Outlet):
    """Takes standard input and output for the protocol; whatever else prints goes to standard error."""

    def __init__(self) -> None:
        self._in = os.fdopen(os.dup(0), "rb", 0)
        self._out: BinaryIO = os.fdopen(os.dup(1), "wb", 0)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        self.buffers = Buffers()
        self._lock = threading.Lock()
        self._queue: Deque[Optional[frames.Frame]] = deque()
        self._held = 0
        self._room = threading.Condition()
        self.failure = ""
        self.gone = threading.Event()  # the client is: whatever takes long may stop
        thread = threading.Thread(target=self._receive, name="receive", daemon=True)
        thread.start()

    def greet(self, nonce: str, header: Dict[str, Any]) -> None:
        """The nonce ends whatever the start-up files printed; then the first frame."""
        with self._lock:
            self._out.write(nonce.encode("ascii"))
            frames.write_frame(self._out, frames.REPLY, header)

    def send(self, kind: bytes, header: Dict[str, Any], body: frames.Body = b"") -> None:
        """One frame; a client that is gone ends this process's work by an OSError."""
        with self._lock:
            frames.write_frame(self._out, kind, header, body)

    def next(self) -> Optional[frames.Frame]:
        """The next frame that is not a heartbeat, or None when the client is gone."""
        with self._room:
            while not self._queue:
                self._room.wait()
            frame = self._queue.popleft()
            if frame is not None:
                self._held -= len(frame.body)
                self._room.notify_all()
            return frame

    def _receive(self) -> None:
        try:
            while True:
                ready, _, _ = select.select([self._in], [], [], SILENCE_SECONDS)
                if not ready:
                    self.failure = "the client fell silent"
                    break
                frame = frames.read_frame(self._in, self.buffers.take)
                if frame is None:
                    break
                if frame.kind != frames.HEARTBEAT:
                    self._put(frame)
        except (OSError, frames.FrameError) as problem:
            self.failure = str(problem)
        except Exception as problem:  # noqa: BLE001  # whatever it is, the main thread must wake and end
            sys.stderr.write("hibali agent: {}\n".format(problem))
        self.gone.set()
        self._put(None)

    def _put(self, frame: Optional[frames.Frame]) -> None:
        with self._room:
            if frame is not None:
                while self._held and self._held + len(frame.body) > _QUEUE_BYTES:
                    self._room.wait()
                self._held += len(frame.body)
            self._queue.append(frame)
            self._room.notify_all()
