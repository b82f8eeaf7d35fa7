"""Carrying from here to another site: what is read here goes to an agent there, over a login of this account's own."""

import contextlib
import os
import queue
import select
import signal
import subprocess
import threading
import time
from typing import Any, BinaryIO, Dict, List, Optional, Tuple, Union, cast

from transfers.agent import frames
from transfers.agent.beneath import Root
from transfers.agent.buffers import Buffers
from transfers.agent.channel import SILENCE_SECONDS, Channel, Outlet
from transfers.agent.reading import Reader

_AHEAD = 2  # units read while an earlier one is sent
_CHATTER = 1024 * 1024
_START_SECONDS = 150.0
_LOOK_SECONDS = 1.0
_ERRORS = 64 * 1024
_END_SECONDS = 3.0

_Waiting = Tuple[bytes, Dict[str, Any], frames.Body]


class UnreachedError(Exception):
    """No agent started there: how ssh ended, None where there is no ssh here, and the end of what it said."""

    def __init__(self, status: Optional[int], errors: str) -> None:
        super(UnreachedError, self).__init__(errors)
        self.status = status
        self.errors = errors


class Relay(Outlet):
    """One login to another site, and the agent there. The client asks as of any target; only the bytes come from here."""

    def __init__(self, channel: Channel, root: Root, words: List[str]) -> None:
        """Start ssh by these words. Raises `UnreachedError` where there is none."""
        self._channel = channel
        self.buffers = self._lent = _Lent()
        self._reader = Reader(root, self)
        self._planned: Dict[int, Dict[str, Any]] = {}
        self._waiting: queue.Queue[_Waiting] = queue.Queue(_AHEAD)
        self._said = bytearray()
        self._closing = False
        try:
            # In a session of its own: it has no terminal to ask at.
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as problem:
            raise UnreachedError(None, str(problem.strerror)) from None
        self._in = cast("BinaryIO", self._process.stdout)
        self._out = cast("BinaryIO", self._process.stdin)
        self._hearing = threading.Thread(target=self._hear, name="words of ssh", daemon=True)
        self._hearing.start()
        threading.Thread(target=self._watch, name="client", daemon=True).start()

    def start(self, opening: bytes, nonce: str) -> Dict[str, Any]:
        """Send the agent its source, and return its greeting. Raises `UnreachedError`."""
        try:
            view = memoryview(opening)
            while view:
                view = view[self._out.write(view) :]
            self._skip_chatter(nonce.encode("ascii"))
            greeting = frames.read_frame(self._in)
        except (OSError, frames.FrameError) as problem:
            raise self._unreached(str(problem)) from None
        if greeting is None:
            raise self._unreached("")
        for work in (self._send_all, self._listen):
            threading.Thread(target=work, name="relay", daemon=True).start()
        return greeting.header

    def _skip_chatter(self, nonce: bytes) -> None:
        """Byte by byte, so that no frame is swallowed."""
        seen = bytearray()
        deadline = time.monotonic() + _START_SECONDS
        while not seen.endswith(nonce):
            ready, _, _ = select.select([self._in], [], [], _LOOK_SECONDS)
            if not ready and self._process.poll() is None and time.monotonic() < deadline:
                continue
            byte = os.read(self._in.fileno(), 1) if ready else b""
            if not byte or len(seen) > _CHATTER:
                raise self._unreached("the agent did not start in time")
            seen += byte

    def _unreached(self, reason: str) -> UnreachedError:
        status = self._end()
        said = bytes(self._said).decode("utf-8", "replace").strip()
        return UnreachedError(status, said or reason)

    def take(self, unit: Dict[str, Any]) -> None:
        """Read a unit; the client is told of it, and its bytes go there."""
        if not unit.get("digest"):
            self._planned[unit["unit"]] = unit
        self._reader.take(dict(unit, items=[_to_read(item) for item in unit["items"]]))

    def send(self, kind: bytes, header: Dict[str, Any], body: frames.Body = b"") -> None:
        """What the reader read: what there is to say of it to the client, all of it to the agent there."""
        unit = self._planned.pop(header["unit"], None)
        self._channel.send(kind, header)
        if unit is None or (unit["segment"] and header["problems"]):
            self._lent.give_back(body)
            return
        self.pass_on(frames.UNIT, unit)
        self.pass_on(kind, header, body)

    def pass_on(self, kind: bytes, header: Dict[str, Any], body: frames.Body = b"") -> None:
        """A message of the client for the agent there, behind all that went before."""
        self._waiting.put((kind, header, body))

    def _send_all(self) -> None:
        """Runs in its own thread, so that the next unit is read meanwhile. Nobody waits for a line that is gone."""
        gone = False
        while True:
            try:
                work = self._waiting.get(timeout=SILENCE_SECONDS / 4)
            except queue.Empty:
                work = (frames.HEARTBEAT, {}, b"")
            try:
                if not gone:
                    frames.write_frame(self._out, *work)
            except (OSError, ValueError):
                gone = True  # the thread that listens says so
            self._lent.give_back(work[2])

    def _listen(self) -> None:
        """Runs in its own thread: all that the agent there answers goes to the client."""
        reason = ""
        try:
            while True:
                frame = frames.read_frame(self._in)
                if frame is None:
                    break
                self._channel.send(frame.kind, frame.header, frame.body)
        except (OSError, ValueError, frames.FrameError) as problem:
            reason = str(problem)
        if not self._closing:
            with contextlib.suppress(OSError):  # the client is gone, too
                message = self._unreached(reason).errors or "the line to the other site was lost"
                self._channel.send(frames.ERROR, {"code": "peer-lost", "message": message})

    def _hear(self) -> None:
        stream = cast("BinaryIO", self._process.stderr)
        while True:
            chunk = stream.read(4096)
            if not chunk:
                return
            self._said += chunk
            del self._said[:-_ERRORS]

    def _watch(self) -> None:
        """Whatever waits for the line ends with the client."""
        self._channel.gone.wait()
        self._kill()

    def _kill(self) -> None:
        """With whatever it started to get there."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self) -> int:
        """How ssh ended; it is ended where it does not do so by itself."""
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
        self._process.wait()
        self._hearing.join(1.0)
        return self._process.returncode

    def close(self) -> None:
        """The agent there ends, and so does ssh."""
        self._closing = True
        try:
            self._waiting.put((frames.REQUEST, {"do": "goodbye"}, b""), timeout=_END_SECONDS)
        except queue.Full:
            self._kill()
        self._reader.close()
        self._end()


class _Lent(Buffers):
    """Buffers that are in use until they were sent, however long after they were read."""

    def give(self, body: Union[bytes, bytearray, memoryview]) -> None:
        """Not yet."""

    def give_back(self, body: Union[bytes, bytearray, memoryview]) -> None:
        """It was sent."""
        super(_Lent, self).give(body)


def _to_read(item: Dict[str, Any]) -> Dict[str, Any]:
    """The item as it is called here, which for a single file may be another name."""
    return dict(item, path=frames.bytes_of(item.get("read", item["path"])))
