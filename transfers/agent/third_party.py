"""Send files straight to another site, and commit files that other programs write here."""

import contextlib
import hashlib
import os
import queue
import select
import signal
import stat
import subprocess
import threading
import time
from typing import Any, BinaryIO, Dict, List, Optional, Tuple, Union, cast

from transfers.agent import protocol
from transfers.agent.committing import Committer, Outcome, Staged, apply_attributes, set_mode, set_time
from transfers.agent.journal import PartialFilesJournal
from transfers.agent.large_files import open_partial, part_of
from transfers.agent.progress import awaited, step, waiting
from transfers.agent.protocol import (
    SILENCE_SECONDS,
    BufferPool,
    Channel,
    Outlet,
    Problem,
    RefusedError,
    UnsafeNameError,
    partial_path,
    problem_of,
)
from transfers.agent.reading import Reader, map_in_threads
from transfers.agent.safe_path import Root
from transfers.agent.writing import purge

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1024 * 1024


class ThirdPartyFiles(object):
    """The partial files that others write for one session; journaled, so that no purge removes them."""

    def __init__(self, root: Root, seed: bytes, disconnected: threading.Event) -> None:
        self._root = root
        self._seed = seed
        self._disconnected = disconnected
        self._journal = PartialFilesJournal(root)
        self.left = False

    def create_partials(self, items: List[Dict[str, Any]]) -> Dict[str, Any]:
        """Create an empty partial file for each item; return their paths, and problems by position."""
        partials: List[bytes] = []
        problems: Dict[str, Problem] = {}
        for position, item in enumerate(items):
            partial = partial_path(self._seed, item["path"])
            partials.append(partial)
            part = part_of(item, partial)
            before = self._journal.start(part)
            try:
                if before is not None:
                    purge(self._root, before.partial)
                    self._journal.end(before)
                os.close(open_partial(self._root, partial, item))
            except (OSError, UnsafeNameError) as problem:
                self._journal.end(part)
                problems[str(position)] = problem_of(problem)
        return {"partials": [protocol.text_of(partial) for partial in partials], "problems": problems}

    def commit_external(self, items: List[Dict[str, Any]]) -> Dict[str, Any]:
        """Hash the files, rename the correct ones, remove the others. Return problems by position."""

        def stage(root: Root, item: Dict[str, Any]) -> Outcome:
            try:
                return Outcome(item["number"], self._stage(root, item), None)
            except BrokenPipeError:
                raise
            except (OSError, UnsafeNameError, RefusedError) as problem:
                return Outcome(item["number"], None, _retryable_problem(problem))

        outcomes = list(map_in_threads(self._root, stage, items))
        committer = Committer(self._root, self._seed)
        try:
            results = committer.commit(outcomes)
        finally:
            committer.close()
        self.left = self.left or committer.left
        problems: Dict[str, Problem] = {}
        for position, (item, result) in enumerate(zip(items, results)):
            if result["problem"] is not None:
                problems[str(position)] = result["problem"]
            self._forget(item)
        return {"problems": problems}

    def _stage(self, root: Root, item: Dict[str, Any]) -> Staged:
        """Stage a file that is complete and correct, open for the sync."""
        part = self._journal.parts.get(item["path"])
        if part is None or part.partial != item["partial"]:
            raise RefusedError("never-arrived", "no data was written")
        descriptor = os.open(part.partial.rpartition(b"/")[2], _FLAGS, dir_fd=root.parent(part.partial))
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise UnsafeNameError("the partial file has another owner or further hard links")
            digest = self._digest(descriptor)
            if digest != item["digest"]:
                raise RefusedError(
                    "corrupt",
                    "the received data differs from the data read at the source: {} bytes, sha256 {}".format(
                        found.st_size, digest
                    ),
                )
            apply_attributes(descriptor, item)
            set_mode(descriptor, item, root.parent)
            set_time(descriptor, item["mtime_ns"])
        except BaseException:
            os.close(descriptor)
            raise
        return Staged(item, part.partial.rpartition(b"/")[2], descriptor, digest)

    def _digest(self, descriptor: int) -> str:
        summed = hashlib.sha256()
        while True:
            if self._disconnected.is_set():
                raise BrokenPipeError(32, "the client disconnected")
            step()
            chunk = os.read(descriptor, _CHUNK)
            if not chunk:
                return summed.hexdigest()
            summed.update(chunk)

    def _forget(self, item: Dict[str, Any]) -> None:
        """Remove a file from the journal after it was renamed or refused."""
        part = self._journal.parts.get(item["path"])
        if part is None or part.partial != item["partial"]:
            return
        try:
            purge(self._root, part.partial)
        except (OSError, UnsafeNameError):
            self.left = True
        self._journal.end(part)

    def close(self) -> None:
        """Close the journal; safe to call twice."""
        self._journal.close()


def _retryable_problem(problem: Exception) -> Problem:
    """Return the problem of an error; a file that is missing or wrong may succeed when it is sent again."""
    found = problem_of(problem)
    return [found[0], found[1], found[2] or found[0] in ("corrupt", "never-arrived", "vanished")]


_QUEUE_LENGTH = 2  # units read while an earlier one is sent
_CHATTER = 1024 * 1024
_START_SECONDS = 150.0
_POLL_SECONDS = 1.0
_ERRORS = 64 * 1024
_END_SECONDS = 3.0

_Waiting = Tuple[bytes, Dict[str, Any], protocol.Body]


class UnreachedError(Exception):
    """No agent started at the other site: ssh's exit status (None: no ssh here) and the end of its stderr."""

    def __init__(self, status: Optional[int], errors: str) -> None:
        super(UnreachedError, self).__init__(errors)
        self.status = status
        self.errors = errors


class Relay(Outlet):
    """A login to another site and the agent there. The client sends the requests; bytes go from here."""

    def __init__(self, channel: Channel, root: Root, argv: List[str]) -> None:
        """Start ssh with these arguments. Raises `UnreachedError` if there is no ssh."""
        self._channel = channel
        self.buffers = self._sent_buffers = _SentBuffers()
        self._reader = Reader(root, self)
        self._planned: Dict[int, Dict[str, Any]] = {}
        self._waiting: queue.Queue[_Waiting] = queue.Queue(_QUEUE_LENGTH)
        self._errors_output = bytearray()
        self._closing = self._heard = False
        try:
            # In its own session, so that it has no terminal for prompts.
            self._process = subprocess.Popen(
                argv,
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
        self._errors_reader = threading.Thread(target=self._read_errors, name="ssh errors", daemon=True)
        self._errors_reader.start()
        threading.Thread(target=self._watch, name="client", daemon=True).start()

    def start(self, opening: bytes, nonce: str) -> Dict[str, Any]:
        """Send the agent its source code, and return its greeting. Raises `UnreachedError`."""
        try:
            view = memoryview(opening)
            while view:
                view = view[self._out.write(view) :]
            self._skip_chatter(nonce.encode("ascii"))
            greeting = protocol.read_frame(self._in)
        except (OSError, protocol.FrameError) as problem:
            raise self._unreached(str(problem)) from None
        if greeting is None:
            raise self._unreached("")
        for work in (self._send_all, self._listen):
            threading.Thread(target=work, name="relay", daemon=True).start()
        awaited.append(self._was_heard)
        return greeting.header

    def _was_heard(self) -> bool:
        """Return whether the other agent sent anything, such as a heartbeat, since the last call."""
        heard, self._heard = self._heard, False
        return heard

    def _skip_chatter(self, nonce: bytes) -> None:
        """Skip output before the nonce, byte by byte so that no frame is lost."""
        seen = bytearray()
        deadline = time.monotonic() + _START_SECONDS
        while not seen.endswith(nonce):
            step()
            ready, _, _ = select.select([self._in], [], [], _POLL_SECONDS)
            if not ready and self._process.poll() is None and time.monotonic() < deadline:
                continue
            byte = os.read(self._in.fileno(), 1) if ready else b""
            if not byte or len(seen) > _CHATTER:
                raise self._unreached("the agent did not start in time")
            seen += byte

    def _unreached(self, reason: str) -> UnreachedError:
        status = self._end()
        errors = bytes(self._errors_output).decode("utf-8", "replace").strip()
        return UnreachedError(status, errors or reason)

    def read_unit(self, unit: Dict[str, Any]) -> None:
        """Read a unit; send its header to the client and its bytes to the other site."""
        if not unit.get("digest"):
            self._planned[unit["unit"]] = unit
        self._reader.read_unit(dict(unit, items=[_to_read(item) for item in unit["items"]]))

    def send(self, kind: bytes, header: Dict[str, Any], body: protocol.Body = b"") -> None:
        """Send what the reader read: the header to the client, everything to the other agent."""
        unit = self._planned.pop(header["unit"], None)
        self._channel.send(kind, header)
        if unit is None or (unit["segment"] and header["problems"]):
            self._sent_buffers.release_sent(body)
            return
        self.forward(protocol.UNIT, unit)
        self.forward(kind, header, body)

    def forward(self, kind: bytes, header: Dict[str, Any], body: protocol.Body = b"") -> None:
        """Forward a client's message to the other agent, after all earlier ones."""
        with waiting():
            self._waiting.put((kind, header, body))

    def _send_all(self) -> None:
        """Send the queue in its own thread, so that reading continues; a lost channel blocks no thread."""
        disconnected = False
        while True:
            try:
                work = self._waiting.get(timeout=SILENCE_SECONDS / 4)
            except queue.Empty:
                work = (protocol.HEARTBEAT, {}, b"")
            try:
                if not disconnected:
                    protocol.write_frame(self._out, *work)
            except (OSError, ValueError):
                disconnected = True  # the listening thread reports it
            self._sent_buffers.release_sent(work[2])

    def _listen(self) -> None:
        """Forward all replies of the other agent to the client; runs in its own thread."""
        reason = ""
        try:
            while True:
                frame = protocol.read_frame(self._in)
                if frame is None:
                    break
                self._heard = True
                if frame.kind != protocol.HEARTBEAT:
                    self._channel.send(frame.kind, frame.header, frame.body)
        except (OSError, ValueError, protocol.FrameError) as problem:
            reason = str(problem)
        if not self._closing:
            with contextlib.suppress(OSError):  # the client is disconnected, too
                message = self._unreached(reason).errors or "the connection to the other site was lost"
                self._channel.send(protocol.ERROR, {"code": "peer-lost", "message": message})

    def _read_errors(self) -> None:
        stream = cast("BinaryIO", self._process.stderr)
        while True:
            chunk = stream.read(4096)
            if not chunk:
                return
            self._errors_output += chunk
            del self._errors_output[:-_ERRORS]

    def _watch(self) -> None:
        """End ssh when the client disconnects, so that no thread waits for it."""
        self._channel.disconnected.wait()
        self._kill()

    def _kill(self) -> None:
        """Kill ssh and the processes that it started."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self) -> int:
        """Return the exit status of ssh; end it if it does not end by itself."""
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
        self._process.wait()
        self._errors_reader.join(1.0)
        return self._process.returncode

    def close(self) -> None:
        """End the other agent and ssh."""
        self._closing = True
        with contextlib.suppress(ValueError):  # the other agent did not start
            awaited.remove(self._was_heard)
        try:
            self._waiting.put((protocol.REQUEST, {"do": "goodbye"}, b""), timeout=_END_SECONDS)
        except queue.Full:
            self._kill()
        self._reader.close()
        self._end()


class _SentBuffers(BufferPool):
    """Buffers that stay in use until they were sent, which may be long after the reading."""

    def release(self, body: Union[bytes, bytearray, memoryview]) -> None:
        """Keep the buffer until it was sent."""

    def release_sent(self, body: Union[bytes, bytearray, memoryview]) -> None:
        """Free a buffer that was sent."""
        super(_SentBuffers, self).release(body)


def _to_read(item: Dict[str, Any]) -> Dict[str, Any]:
    """Return the item under its name here, which for a single file may be another."""
    return dict(item, path=protocol.bytes_of(item.get("read", item["path"])))
