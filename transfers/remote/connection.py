"""Start an agent, also by a forced command, send requests to it, and read its replies."""

from __future__ import annotations

import contextlib
import functools
import re
import secrets
import select
import shlex
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.request_log import command_text, is_logging, log_line
from hibali.retry import StallClock, stalled
from hibali.subprocesses import ProcessStreams
from hibali.system_errors import EXPLANATIONS, hint_of, message_of
from hibali.text import as_text, printable
from transfers.agent import protocol
from transfers.agent.protocol import FAILED, SILENCE_SECONDS
from transfers.model.leases import locked
from transfers.remote.shared_memory import allocate_buffer, arena

if TYPE_CHECKING:  # start-up: only for ssh
    from hibali.ssh.sessions import Login

# Reads eight digits and then that many bytes, directly from descriptor 0 so that nothing more is consumed.
# No newline, quote, `!` or `$`: it can be single-quoted in sh, bash, tcsh and fish alike.
BOOTSTRAP = (
    "import os,zlib;"
    'r=lambda n,d=b"":r(n,d+(os.read(0,n-len(d))or os._exit(9)))if len(d)<n else d;'
    "exec(zlib.decompress(r(int(r(8)))))"
)

# Finds the modules that were sent, and compiles each at its first import; the class of a specification
# (PEP 451) is taken from an existing one, because importing it is slow.
_FINDER = """
import sys
class Sent:
    def __init__(self, texts):
        self.texts = texts
    def find_spec(self, name, path=None, target=None):
        text = self.texts.get(name)
        return None if text is None else type(sys.__spec__)(name, self, is_package=not text)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(self.texts[module.__name__], "hibali:" + module.__name__, "exec"), module.__dict__)
"""

# After the standard library, so that modules beside hibali do not shadow it.
_HERE = "import sys\nsys.path.append({!a})\n"
_ROOT = Path(__file__).resolve().parents[2]
AGENT = "transfers.agent"

# Docstrings are a quarter of the source, and the agent does not need them.
_DOCSTRING = re.compile(r'^( *)"""(?:[^"\\]|"(?!"")|\\.)*"""$', re.MULTILINE)
_COMMENT = re.compile(r"^ *#.*$", re.MULTILINE)


def remote_command(python: str) -> str:
    """Return the command line for a login shell at a site."""
    return f"exec {python} -I -S -c '{BOOTSTRAP}'"


def local_command(python: str) -> list[str]:
    """Return the arguments that start the agent on this machine."""
    return [python, "-I", "-S", "-c", BOOTSTRAP]


def opening(nonce: str, roots: Sequence[str] = (), reports: float = 0.0, *, here: bool = False) -> bytes:
    """Return the first input of the agent, before any frame.

    With `here`, it loads hibali's installed modules. `roots` and `reports` are as in `transfers.agent.serve.main`.
    """
    call = f"transfers.agent.serve.main({nonce!r}, {tuple(roots)!a}, {reports})"
    source = _HERE.format(str(_ROOT)).encode("ascii") if here else _source()
    packed = zlib.compress(source + f"import transfers.agent.serve\n{call}\n".encode("ascii"), 9)
    return b"%08d" % len(packed) + packed


@functools.cache
def _source() -> bytes:
    return sent_modules(AGENT)


def sent_modules(*packages: str) -> bytes:
    """Return a program that finds all modules of these packages in itself."""
    texts: dict[str, str] = {}
    for package in packages:
        names = package.split(".")
        texts.update(dict.fromkeys(accumulate(names, "{}.{}".format), ""))
        for file in sorted(_ROOT.joinpath(*names).glob("[a-z]*.py")):
            texts[f"{package}.{file.stem}"] = _without_comments(file.read_text("utf-8"))
    return f"{_FINDER}\nsys.meta_path.insert(0, Sent({texts!a}))\n".encode("ascii")


def _without_comments(text: str) -> str:
    """Remove docstrings; statements keep their lines, so that tracebacks match."""
    return _COMMENT.sub("", _DOCSTRING.sub(_empty_string, text))


def _empty_string(found: re.Match[str]) -> str:
    return found.group(1) + '""' + "\n" * found.group(0).count("\n")


UNMEASURED = 60.0  # seconds: the round trip of a connection that has answered no request yet
_CHATTER = 1024 * 1024  # the limit for output of start-up files before the agent's first frame
_START_SECONDS = 90.0
_END_SECONDS = 2.0
_POLL_MILLISECONDS = 1000
_WRITE_BYTES = 256 * 1024  # at a time, so that a slow connection shows progress
_SIGNALLED = 128  # a shell adds the number of the signal that killed a program to this
_REPORTS = 10  # during the longest time without progress


class _Pipe:
    """One direction of a connection; `call` is the number of the read or write in progress, 0 for none."""

    def __init__(self, stream: BinaryIO, ended: threading.Event) -> None:
        self._stream = stream
        self._ended = ended
        self._poll = select.poll()
        self._poll.register(stream, select.POLLIN)
        self._numbers = count(1)
        self.call = 0

    def readinto(self, buffer: protocol.Buffer) -> int:
        self.call = next(self._numbers)
        try:
            while not self._poll.poll(_POLL_MILLISECONDS):
                if self._ended.is_set():  # the process may be impossible to kill, and then has no end of file
                    return 0
            return self._stream.readinto(buffer)  # type: ignore[attr-defined, no-any-return]
        finally:
            self.call = 0

    def write(self, content: memoryview) -> int:
        self.call = next(self._numbers)
        try:
            return self._stream.write(content[:_WRITE_BYTES])
        finally:
            self.call = 0


class Connection:
    """One agent process. One thread sends requests; a second one may use `send` while replies are read."""

    def __init__(
        self,
        process: ProcessStreams,
        subject: str,
        login: Login | None = None,
        *,
        here: bool = False,
        inspect_path: bytes | None = None,
        roots: Sequence[str] = (),
        stall: float = 0.0,
    ) -> None:
        """Send a process the agent; `subject` names the site in errors. It is ended after no progress for `stall` seconds; 0: never.

        Raises `TryLaterError`, `AccessError`, `NotFoundError`. Below the site's `roots` it follows no symlink
        of another account. It runs `here`, on this machine, and has inherited the shared memory, or at a site. The state of
        `inspect_path` is requested at once, as the first of `replies`.
        """
        self.subject = subject
        self.memory = memory = arena() if here else None
        self._here = here
        self._login = login
        self._process = process
        self._stall, self._stalled = stall, threading.Event()
        self._input: Any = _Pipe(self._process.stdout, self._stalled)
        self._output: Any = _Pipe(self._process.stdin, self._stalled)
        self.reports = stall / _REPORTS  # seconds between an agent's reports of its progress
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.lost = False  # True after the agent ended unexpectedly
        self._greeted = False
        self._chatter = (
            bytearray()
        )  # what start-up files, or a server that refuses, printed before the first frame
        self.data_bytes = 0
        self.round_trip = UNMEASURED  # seconds; the shortest round trip so far
        self._posted: list[str] = []
        self.root_of: object | None = None  # the store whose root the agent has open: one at a time
        self.borrowed = False  # see transfers.remote.lending
        self._asked = self._answered = 0
        try:
            with self._process.limited(_START_SECONDS + (login.prompt_seconds if login else 0.0)):
                self.greeting = self._start(inspect_path, roots)
            self._greeted = True
            if memory is not None:
                self.post("share", descriptor=memory.descriptor, size=memory.size)
        except BaseException:
            self._process.kill()
            self._process.end()
            raise
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def _start(self, inspect_path: bytes | None, roots: Sequence[str]) -> dict[str, Any]:
        nonce = secrets.token_hex(16)
        try:
            self._write_all(opening(nonce, roots, self.reports, here=self._here))
        except OSError:
            raise self._end_error() from None
        if inspect_path is not None:
            self.post("inspect", path=protocol.text_of(inspect_path))
        self._skip_chatter(nonce.encode("ascii"))
        greeting = self._receive().header
        if greeting.get("protocol") != protocol.PROTOCOL:
            raise IncompleteError("protocol", "the agent uses another protocol version", subject=self.subject)
        return greeting

    @property
    def process(self) -> dict[str, Any]:
        """The agent's identification of its process, for another agent that ends it."""
        return {name: self.greeting.get(name) for name in ("host", "boot", "namespace", "pid", "start")}

    def _write_all(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[self._process.stdin.write(view) :]

    def _skip_chatter(self, nonce: bytes) -> None:
        """Skip what remote start-up files print, byte by byte at the end so that no frame is consumed."""
        seen = self._chatter
        while not seen.endswith(nonce):
            chunk = self._process.stdout.read(1)
            if not chunk:
                raise self._end_error()
            seen += chunk
            if len(seen) > _CHATTER:
                raise IncompleteError(
                    "startup-output",
                    "the shell start-up files at the site print too much",
                    subject=self.subject,
                    hint="Change them so that they print nothing without a terminal.",
                )

    def send(self, kind: bytes, header: dict[str, Any], body: protocol.Body = b"") -> None:
        """Send one frame; raises the error that explains why the agent ended."""
        try:
            with self._lock:
                self._asked += _answers_to(kind, header)
                protocol.write_frame(self._output, kind, header, body)
                self.data_bytes += len(body) if kind == protocol.DATA else 0
        except (OSError, ValueError):
            raise self._end_error() from None

    def receive(self) -> protocol.Frame:
        """Return the next frame; an ERROR frame is raised as its error."""
        frame = self._receive()
        if frame.kind == protocol.ERROR:
            raise self._translate(frame.header)
        return frame

    def _receive(self) -> protocol.Frame:
        try:
            frame = protocol.read_frame(self._input, allocate_buffer)
            while frame is not None and frame.kind == protocol.HEARTBEAT:
                frame = protocol.read_frame(self._input, allocate_buffer)
        except protocol.FrameError as problem:
            if "ended" in str(problem):
                raise self._end_error() from None
            raise IncompleteError(
                "protocol",
                f"the agent broke the protocol: {problem}",
                subject=self.subject,
                hint="The reply was ignored.",
            ) from None
        except (OSError, ValueError):
            raise self._end_error() from None
        if frame is None:
            raise self._end_error()
        self.data_bytes += len(frame.body) if frame.kind == protocol.DATA else 0
        self._answered += frame.kind in _ANSWERS
        return frame

    @property
    def idle(self) -> bool:
        """Whether every request was answered, so that another store can use it."""
        return self._asked == self._answered and not (self.lost or self._closed.is_set())

    def post(self, command: str, body: protocol.Body = b"", **details: Any) -> None:
        """Send a request with one reply; replies come in the order of requests."""
        self.send(protocol.REQUEST, {"do": command, **details}, body)
        self._posted.append(command)

    def replies(self, sent_at: float | None = None) -> list[protocol.Frame]:
        """Read the replies to posted requests, the first sent at `sent_at`; raises the first error."""
        posted, self._posted = self._posted, []
        found = []
        refused: HibaliError | None = None
        for command in posted:
            frame = self._receive()
            found.append(frame)
            if sent_at is not None and len(found) == 1:
                self.round_trip = min(self.round_trip, time.monotonic() - sent_at)
            if frame.kind == protocol.ERROR:  # the other replies follow
                refused = refused or self._translate(frame.header)
            elif frame.kind != protocol.END:
                raise self.broken(f"replied to {command} with {frame.kind!r}")
        if refused is not None:
            raise refused
        return found

    def request(self, command: str, **details: Any) -> protocol.Frame:
        """Send one request and return its reply."""
        return self.request_all([(command, details)])[0]

    def request_all(self, requests: Sequence[tuple[str, dict[str, Any]]]) -> list[protocol.Frame]:
        """Send several requests at once, with one reply each; raises the first error."""
        began = time.monotonic()
        before = len(self._posted)
        for command, details in requests:
            self.post(command, **details)
        replies = self.replies(None if before else began)[before:]
        if is_logging():
            for (command, details), reply in zip(requests, replies, strict=True):
                self._log(command, details, reply, time.monotonic() - began)
        return replies

    def _log(self, command: str, details: dict[str, Any], reply: protocol.Frame, seconds: float) -> None:
        """Report a request and its reply: the path, or the command line and its exit code, never content."""
        words = [protocol.bytes_of(word) for word in details.get("words", ())]
        subject = command_text(words) if words else as_text(protocol.bytes_of(details.get("path", "")))
        result = reply.header.get("answer") or reply.header
        outcome = f" exit {result.get('exit')}" if words and isinstance(result, dict) else ""
        log_line(
            "command" if words else "agent", f"{self.subject} {command} {subject}{outcome} {seconds:.3f} s"
        )

    def replies_to(self, command: str) -> Iterator[protocol.Frame]:
        """Yield the replies to a request that was sent before; the last one is END."""
        self.replies()
        while True:
            frame = self.receive()
            if frame.kind not in {protocol.REPLY, protocol.END}:
                raise self.broken(f"replied to {command} with {frame.kind!r}")
            yield frame
            if frame.kind == protocol.END:
                return

    def broken(self, violation: str) -> IncompleteError:
        """Return the error for a violation of the protocol."""
        return IncompleteError(
            "protocol", f"the agent broke the protocol: it {violation}", subject=self.subject
        )

    @contextlib.contextmanager
    def understanding(self) -> Iterator[None]:
        """Convert errors while a reply is parsed to a violation of the protocol by the agent."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
            raise self.broken("sent a reply of an unexpected form") from None

    def expand(self, path: bytes) -> bytes:
        """Expand `~`, `~/x`, `$NAME` or `$NAME/x` there to an absolute path."""
        return self.path_in(self.request("expand", path=protocol.text_of(path)))

    def path_in(self, reply: protocol.Frame) -> bytes:
        """Return the path in a reply; raise if it is not absolute."""
        with self.understanding():
            found = protocol.bytes_of(reply.header["path"])
            if not found.startswith(b"/") or b"\0" in found:
                raise ValueError
            return found

    def _translate(self, header: dict[str, Any]) -> HibaliError:
        code = str(header.get("code", "failed"))
        subject = self._subject(header)
        if code == "locked":
            holder = header.get("holder")
            return locked(holder if isinstance(holder, dict) else {}, self.subject)
        message = printable(message_of(code, str(header.get("message", ""))))
        if code == FAILED:
            return agent_failed(message, subject)
        if code == "written-by-another":
            hint = "Run the same command again: it checks what is there now, and continues."
            return TryLaterError(code, message, subject=subject, hint=hint, transient=False)
        return error_from(code, message, subject)

    def _subject(self, header: dict[str, Any]) -> str:
        with contextlib.suppress(UnicodeEncodeError, AttributeError):
            path = protocol.bytes_of(header.get("about", ""))
            if path:
                return f"{self.subject}:{printable(path)}"
        return self.subject

    def _end_error(self) -> HibaliError:
        """Return the error that explains the agent's end, from the messages of ssh or python."""
        self.lost = self.lost or not self._closed.is_set()
        if self._stalled.is_set():
            return stalled(self._stall, self.subject)
        if self._process.late and self._login is not None and self._login.asks:
            return self._login.unanswered()
        if self._process.late:
            return TryLaterError(
                "no-answer",
                f"the agent did not start within {_START_SECONDS:.0f} s",
                subject=self.subject,
                hint="Check the load of the host and its shell start-up files, then run the same command again.",
            )
        if not self._greeted:
            self._chatter += self._process.rest_of_output(_END_SECONDS) or b""
        code = self._process.end(_END_SECONDS)
        errors = self._process.errors
        if self._login is not None and code == 255:
            return self._login.explain(errors)
        output = errors.decode("utf-8", "replace").strip()
        if code == protocol.CPU_LIMIT:
            return self._out_of_cpu_time(output)
        text = printable(output)[-300:]
        if code == 127 or ("not found" in text and "python" in text):
            return NotFoundError(
                "no-python",
                "python3 cannot be started at the site",
                subject=self.subject,
                hint="Set `python` of the site to a Python 3.6 or later.",
            )
        reason = printable(output.splitlines()[-1])[-300:] if output else f"status {code}"
        if not self._greeted:
            return self._not_started(code, errors, reason)
        if 0 < code < _SIGNALLED:
            return agent_failed(reason, self.subject)
        return TryLaterError(
            "connection-lost", f"the agent ended: {text or f'status {code}'}", subject=self.subject
        )

    def _out_of_cpu_time(self, output: str) -> TryLaterError:
        """Return the error for an agent that used up what the host allows; a new one has the same again."""
        reason = printable(output.splitlines()[-1])[-300:] if output else ""
        return TryLaterError(
            "cpu-limit",
            f"hibali's agent used up its CPU time: {reason}",
            subject=self.subject,
            hint="Run the same command again. Files that take longer can be hashed in a job: hibali verify SITE:PATH --nodes 1",
        )

    def _not_started(self, status: int, errors: bytes, reason: str) -> HibaliError:
        """Return the error for an agent that never answered: a new login would not help."""
        if self._login is not None and status >= 0:
            output = errors + b"\n" + bytes(self._chatter)
            if refused := self._login.explain_end(status, output, self.subject):
                return refused
        return TryLaterError(
            "agent-not-started",
            f"hibali's agent cannot start: {reason}",
            subject=self.subject,
            hint="Log in there and run `python3 -V`. Set `python` of the site to a Python 3.6 or later that works.",
            transient=False,
        )

    def _beat(self) -> None:
        """Send heartbeats to the agent, which ends without them; end it once a read or write lasts too long."""
        period = min(SILENCE_SECONDS / 4, self.reports or SILENCE_SECONDS)
        clock = StallClock(self._stall)
        while not self._closed.wait(period):
            # an agent that reports progress may be too busy to read
            calls = (self._input.call, 0 if self._input.call else self._output.call)
            if clock.is_over(calls if any(calls) else None, period):
                self._stalled.set()
                self._process.kill()
                return
            self._send_now(protocol.HEARTBEAT, {})

    def _send_now(self, kind: bytes, header: dict[str, Any], patience: float = 0.0) -> None:
        """Send a small frame, unless the agent does not read, or another thread sends for longer than `patience`."""
        if not self._lock.acquire(timeout=patience):
            return
        try:
            poll = select.poll()
            poll.register(self._process.stdin, select.POLLOUT)
            if poll.poll(0):
                protocol.write_frame(self._output, kind, header)
        except (OSError, ValueError):  # the thread that waits for a reply finds out why
            return
        finally:
            self._lock.release()

    def close(self, patience: float = 5.0) -> None:
        """End the session, and wait `patience` seconds for the agent's exit; safe to call twice, and from several threads."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        self._send_now(protocol.REQUEST, {"do": "goodbye"}, patience)
        self._process.end(patience)


_ANSWERS = frozenset({protocol.END, protocol.ERROR, protocol.DATA})


def _answers_to(kind: bytes, header: dict[str, Any]) -> int:
    """Return how many frames of `_ANSWERS` a frame brings: a unit that is written is sent with its data."""
    if kind == protocol.REQUEST:
        return int(header.get("do") != "start_receiving")  # `finish_receiving` ends both
    return {protocol.UNIT: 1, protocol.DATA: -1}.get(kind, 0)


_HINTS = {
    "foreign-symlink": "If you trust where it leads, name that path instead.",
    "target-exists": "Choose another name, or remove what exists. Nothing was changed.",
    "leaves-root": "To delete there, name that path instead, or configure it as a root of the site.",
}


def agent_failed(reason: str, subject: str) -> HibaliError:
    """Return the error for an exception in the agent, a bug of hibali that is never retried."""
    return HibaliError(
        "agent-failed",  # the agent's code for a bug
        f"hibali's agent stopped because of a bug: {reason}",
        subject=subject,
        hint="Please report this message, with the version: hibali --version",
    )


def error_from(code: str, message: str, subject: str) -> HibaliError:
    """Return the error for an agent's code and message."""
    path = next((each for each in (subject, subject.partition(":")[2]) if each.startswith("/")), "")
    return _error_of(code)(code, message, subject=subject, hint=_HINTS.get(code) or hint_of(code, path))


def _error_of(code: str) -> type[HibaliError]:
    known = EXPLANATIONS.get(code)
    if known is not None:
        return known.error
    if code == "no-such-account":
        return NotFoundError
    if code in {
        "no-access-lists",
        "not-shared",
        "unsafe-name",
        "reserved-name",
        "not-private",
        "backup-overlaps",
        "other-filesystem",
        "foreign-symlink",
        "leaves-root",
        "overlap",
        "target-exists",
    }:
        return RefusedError
    if code in {
        "lease-lost",
        "stale-agent-locks",
        "peer-lost",
        "errno-econnreset",
    }:
        return TryLaterError
    return IncompleteError


_PYTHON = re.compile(r"[A-Za-z0-9_./+-]+")


def forced_command_script(python: str, *, agent: bool = True) -> str:
    """Return the script of the forced command; without `agent`, only SFTP transfers files."""
    if not _PYTHON.fullmatch(python):
        raise UsageError("unsafe-python", "`python` can only have letters, digits and _./+-", subject=python)
    text = Path(__file__).with_name("forced_command.sh").read_text("ascii")
    return text.replace("@AGENT@", shlex.quote(remote_command(python)) if agent else "")
