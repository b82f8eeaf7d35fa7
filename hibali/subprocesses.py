"""Run programs on this machine from argument lists, never through a shell; hide secrets from them."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

from hibali.cancellation import current_cancellation
from hibali.errors import AccessError, IncompleteError, NotFoundError, TryLaterError
from hibali.retry import after_interruption
from hibali.system_errors import reason_of

if TYPE_CHECKING:  # start-up: every command imports this module
    import socket

_PIPE_BYTES = 1024 * 1024  # Linux's default limit for users
_STDERR_TAIL_BYTES = 64 * 1024
_MOST_OUTPUT = 512 * 1024 * 1024  # `git ls-files` of some million names
_PARENT_GUARD = str(Path(__file__).with_name("parent_guard.py"))
_POLL_SECONDS = 0.25
_KILL_SECONDS = 5.0
_PATIENCE_SECONDS = 1.2  # an interrupted command ends within two seconds


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a program; `exit_code` is negative for a signal."""

    exit_code: int
    stdout: bytes
    stderr: bytes


_in_library = False
_on_program: list[Callable[[Sequence[str | bytes]], None]] = []
_on_start: ContextVar[Callable[[Callable[[], None]], None] | None] = ContextVar("on_start", default=None)


def watch_programs(on_program: Callable[[Sequence[str | bytes]], None]) -> None:
    """Call `on_program` with the arguments of every program that this process starts."""
    _on_program[:] = [on_program]


@contextlib.contextmanager
def limited_programs(seconds: float) -> Iterator[Callable[[], bool]]:
    """Kill the programs that are started in the block once it takes longer; yield a function that says whether it did."""
    started: list[Callable[[], None]] = []
    late = threading.Event()

    def kill_all() -> None:
        late.set()
        for kill in started:
            kill()

    def note(kill: Callable[[], None]) -> None:
        started.append(kill)
        if late.is_set():
            kill()

    timer = threading.Timer(seconds, kill_all)
    timer.daemon = True
    token = _on_start.set(note)
    timer.start()
    try:
        yield late.is_set
    finally:
        timer.cancel()
        _on_start.reset(token)


def work_as_library() -> None:
    """Leave the terminal and the environment to the program that imported hibali, from now on.

    Nothing prompts. `hide_variable` leaves the variable in `os.environ`; programs that hibali starts do not inherit it.
    """
    global _in_library  # noqa: PLW0603  # a process has one terminal and one environment
    _in_library = True


def has_terminal() -> bool:
    """Return whether stdin and stderr are a terminal, so that a user can answer a question."""
    if _in_library:
        return False
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()


def run(
    argv: Sequence[str | bytes],
    *,
    stdin: bytes = b"",
    timeout: float = 60.0,
    environment: Mapping[str, str] | None = None,
    foreground: bool = False,
    umask: int = -1,
    stop_after: bytes = b"",
    most: int = _MOST_OUTPUT,
    shown: int | None = None,
) -> CommandResult:
    """Run a program and wait for it, with a `umask` where it creates private files; logs show its first `shown` words.

    It is killed once it printed more than `most` bytes. It is also killed once `stop_after` appears on its standard error.

    `foreground` leaves it the terminal, so that it can prompt (for a login); otherwise it has none.
    Output goes to files, not pipes: a child that stays behind (an ssh master) must not block hibali.
    Raises `NotFoundError` for a missing program, `TryLaterError("timed-out")`, `IncompleteError("too-much-output")`.
    """
    import tempfile  # start-up: only to run programs

    with (
        _stdin_file(stdin) as stdin_file,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        process = _start(
            argv, stdin_file, output, errors, environment, foreground=foreground, umask=umask, shown=shown
        )
        deadline = time.monotonic() + timeout
        try:
            while not _ended_soon(process, deadline):
                _check_output(process, argv[0], (output, errors), most)
                # a seek would move the position of its writes
                if stop_after and stop_after in os.pread(errors.fileno(), _STDERR_TAIL_BYTES, 0):
                    _kill(process)
                    break
            _check_output(process, argv[0], (output, errors), most)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise _late_error(argv[0], timeout) from None
        except BaseException:
            _kill(process)
            raise
        return CommandResult(process.returncode, _content(output), _content(errors)[-_STDERR_TAIL_BYTES:])


def run_in_terminal(argv: Sequence[str | bytes], *, stdout: int = 1, timeout: float | None = None) -> int:
    """Run a program with this process's own streams, such as an editor, until it ends; return its exit code.

    `stdout` is the descriptor to which it prints: 2 where this process prints results. After `timeout` seconds it is
    killed. Raises `TryLaterError("timed-out")`, and `NotFoundError` for a missing program.
    """
    process = _start(argv, 0, stdout, 2, None, foreground=True)
    with _terminal_restored():
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise _late_error(argv[0], timeout) from None
        except BaseException:
            _kill(process)
            raise


def _late_error(program: str | bytes, seconds: float | None) -> TryLaterError:
    return TryLaterError("timed-out", f"did not end within {seconds:g} s", subject=_program_name(program))


@contextlib.contextmanager
def _terminal_restored() -> Iterator[None]:
    """Restore the settings of the terminal: a program that is killed at a hidden prompt leaves it without echo."""
    import termios  # start-up: only where a program may prompt

    try:
        before = termios.tcgetattr(0) if os.tcgetpgrp(0) == os.getpgrp() else None
    except (OSError, termios.error):
        before = None
    if before is None:  # none, or that of another job, which may not be touched
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError, termios.error):
            if os.tcgetpgrp(0) == os.getpgrp():
                termios.tcsetattr(0, termios.TCSANOW, before)


def _stdin_file(content: bytes) -> BinaryIO:
    """Yield a memory file for a program's standard input: a pipe would need a thread that writes to it."""
    import tempfile  # start-up: only to run programs

    try:
        stream = os.fdopen(os.memfd_create("input"), "w+b")
    except OSError:  # a kernel or sandbox without memfd_create
        stream = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the caller
    stream.write(content)
    stream.seek(0)
    return stream


def _ended_soon(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Return whether it ended, after at most a quarter of a second. Raises `TimeoutExpired` after the deadline."""
    left = deadline - time.monotonic()
    try:
        process.wait(max(0.0, min(left, _POLL_SECONDS)))
    except subprocess.TimeoutExpired:
        if left <= _POLL_SECONDS:
            raise
        return False
    return True


def _check_output(
    process: subprocess.Popen[bytes], program: str | bytes, streams: Sequence[BinaryIO], most: int
) -> None:
    """Kill it and raise `IncompleteError` where it printed more than `most` bytes, which would all be kept in memory."""
    if any(os.fstat(stream.fileno()).st_size > most for stream in streams):
        _kill(process)
        raise IncompleteError(
            "too-much-output",
            f"printed more than {most} bytes, so hibali killed it",
            subject=_program_name(program),
            hint="Run it yourself and check its output.",
        )


class ProcessStreams(ABC):
    """A program here or at a host, with raw standard input and output, and the end of its standard error."""

    stdin: BinaryIO
    stdout: BinaryIO
    late = False  # whether `limited` has killed it

    @property
    @abstractmethod
    def errors(self) -> bytes:
        """The last 64 KiB of standard error, complete once the program has ended."""

    @abstractmethod
    def end(self, patience: float = 5.0) -> int:
        """Close its input, wait, then kill it; returns the exit code."""

    @abstractmethod
    def kill(self) -> None:
        """Kill it."""

    @contextlib.contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Kill it where the block takes longer: a write may block as well as a read (S23)."""

        def kill() -> None:
            self.late = True
            self.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def rest_of_output(self, patience: float) -> bytes | None:
        """Return what it prints until it ends; None if it still runs after `patience` seconds, or prints more than 64 KiB."""
        text, deadline = bytearray(), time.monotonic() + patience
        with contextlib.suppress(OSError, ValueError):
            while select.select([self.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                chunk = self.stdout.read(4096)
                text += chunk
                if not chunk or len(text) > _STDERR_TAIL_BYTES:
                    return bytes(text) if not chunk else None
        return None


class Process(ProcessStreams):
    """A program on this machine."""

    def __init__(
        self,
        argv: Sequence[str | bytes],
        environment: Mapping[str, str] | None = None,
        leave: Sequence[int] = (),
        *,
        on_error: Callable[[bytes], None] | None = None,
        guarded: bool = False,
        foreground: bool = False,
    ) -> None:
        """Start it in its own session, so that Ctrl-C reaches hibali and not it; `leave` are descriptors that it inherits.

        `on_error` is called with all its standard error, in another thread. A `guarded` program ends when the thread that
        started it ends for any reason. `foreground` leaves it the terminal, so that it can prompt, and Ctrl-C ends it.
        """
        self._on_error = on_error
        self._restored = contextlib.ExitStack()
        if foreground:
            self._restored.enter_context(_terminal_restored())
        self._process = _start(
            [sys.executable, "-I", "-S", _PARENT_GUARD, str(os.getpid()), *argv] if guarded else argv,
            subprocess.PIPE,
            subprocess.PIPE,
            subprocess.PIPE,
            environment,
            foreground=foreground,
            leave=leave,
        )
        self.stdin = cast("BinaryIO", self._process.stdin)
        self.stdout = cast("BinaryIO", self._process.stdout)
        widen_pipes(self.stdin, self.stdout)
        self._stderr_tail = bytearray()
        self._killed = False
        self._thread = threading.Thread(target=self._read_stderr, name="stderr", daemon=True)
        self._thread.start()

    def _read_stderr(self) -> None:
        stream = cast("BinaryIO", self._process.stderr)
        while chunk := stream.read(4096):
            self._stderr_tail += chunk
            if self._on_error is not None:
                self._on_error(chunk)
            del self._stderr_tail[:-_STDERR_TAIL_BYTES]
        stream.close()

    @property
    def errors(self) -> bytes:
        """See ProcessStreams."""
        return bytes(self._stderr_tail)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def end(self, patience: float = 5.0) -> int:
        """See ProcessStreams."""
        with self._restored:
            return self._end(patience)

    def _end(self, patience: float) -> int:
        with contextlib.suppress(OSError):
            self.stdin.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            _kill(self._process)
        if not (self._killed or self._process.returncode in {None, -signal.SIGKILL}):
            # otherwise ssh's master may still hold its standard error
            self._thread.join(1.0)
        with contextlib.suppress(OSError):
            self.stdout.close()
        return _exit_code(self._process)

    def kill(self) -> None:
        """See ProcessStreams."""
        self._killed = True
        _kill(self._process)


class SocketProcess:
    """A program whose standard input and output are a connection; it ends when the thread that started it ends."""

    def __init__(self, argv: Sequence[str | bytes], connection: socket.socket) -> None:
        """Start it; the caller closes its own end of the connection."""
        import tempfile  # start-up: only to run programs

        guarded = [sys.executable, "-I", "-S", _PARENT_GUARD, str(os.getpid()), *argv]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `wait`
        number = connection.fileno()
        self._process = _start(guarded, number, number, self._errors, None, foreground=False)

    def wait(self) -> tuple[int, bytes]:
        """Wait for its end; return the exit code and the end of its standard error."""
        code = self._process.wait()
        with self._errors:
            return code, _content(self._errors)[-_STDERR_TAIL_BYTES:]

    def kill(self) -> None:
        """Kill it, without waiting."""
        _send_kill(self._process)


class BackgroundProcess:
    """A long-running program: its output lines are passed to `on_line`, its standard error goes to a file."""

    def __init__(
        self,
        argv: Sequence[str | bytes],
        *,
        environment: Mapping[str, str],
        folder: str,
        stderr_file: BinaryIO,
        on_line: Callable[[bytes], None],
        leave: Sequence[int] = (),
    ) -> None:
        """Start it in `folder`, in its own session; `leave` are descriptors that it inherits. `on_line` is called from a thread.

        Raises `NotFoundError` for a missing program or folder.
        """
        self._process = _start(
            argv,
            subprocess.DEVNULL,
            subprocess.PIPE,
            stderr_file,
            environment,
            foreground=False,
            leave=leave,
            folder=folder,
        )
        self._on_line = on_line
        self._thread = threading.Thread(target=self._forward_lines, name="background-process", daemon=True)
        self._thread.start()

    def _forward_lines(self) -> None:
        with io.BufferedReader(cast("io.RawIOBase", self._process.stdout)) as stream:
            for line in stream:
                self._on_line(line)

    def wait(self, seconds: float | None = None) -> int | None:
        """Return its exit code, negative for a signal; None where it still runs after `seconds`."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._thread.join(5.0)  # processes that it left running may hold its output
        return code

    def end(self, patience: float = 30.0) -> int:
        """End its process group: with SIGINT as Ctrl-C does, then SIGTERM, then SIGKILL; returns the exit code."""
        for number, seconds in ((signal.SIGINT, patience), (signal.SIGTERM, patience / 3)):
            self._signal(number)
            code = self.wait(seconds)
            if code is not None:
                return code
        _kill(self._process)
        return _exit_code(self._process)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


# by process id; reading and writing them is atomic in CPython
_running: dict[int, subprocess.Popen[bytes]] = {}
_uncancelled: dict[int, Callable[[], None]] = {}


@cache
def _watch_for_interruption() -> None:
    """Kill all programs some time after an interruption: a slow connection or a hanging host must not delay the exit."""

    def kill_all() -> None:
        for process in list(_running.values()):
            _send_kill(process)  # the thread that started it waits for it, if it still runs

    after_interruption(_PATIENCE_SECONDS, kill_all)


def _start(
    argv: Sequence[str | bytes],
    stdin: int | BinaryIO,
    stdout: int | BinaryIO,
    stderr: int | BinaryIO,
    environment: Mapping[str, str] | None,
    *,
    foreground: bool,
    leave: Sequence[int] = (),
    umask: int = -1,
    folder: str | None = None,
    shown: int | None = None,
) -> subprocess.Popen[bytes]:
    for on_program in _on_program:
        on_program(argv[:shown])
    try:
        process = subprocess.Popen(
            [os.fsencode(argument) for argument in argv],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            env=_without_hidden(os.environ if environment is None else environment),
            start_new_session=not foreground,
            pass_fds=leave,
            umask=umask,
            cwd=folder,
        )
    except (FileNotFoundError, PermissionError, NotADirectoryError) as problem:
        raise NotFoundError(
            "no-such-program",
            f"cannot be run: {reason_of(problem)}",
            subject=_program_name(argv[0]),
            hint="Check that it is installed and on PATH.",
        ) from None
    for pid in [pid for pid, one in list(_running.items()) if one.returncode is not None]:
        _running.pop(pid, None)
        _uncancelled.pop(pid, _nothing)()
    _running[process.pid] = process
    _watch_for_interruption()
    running = weakref.ref(process)

    def kill() -> None:
        found = running()
        if found is not None:
            _send_kill(found)

    _uncancelled[process.pid] = bind_to_call(kill)
    return process


def bind_to_call(kill: Callable[[], None]) -> Callable[[], None]:
    """Have a program killed if the current operation is cancelled and it does not end soon, or at the end of `limited_programs`.

    Returns the function that undoes the first.
    """
    on_start = _on_start.get()
    if on_start is not None:
        on_start(kill)
    cancellation = current_cancellation()
    return _nothing if cancellation is None else cancellation.on_cancel(lambda: _kill_later(kill))


def _without_hidden(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _hidden}


def _nothing() -> None:
    """Do nothing."""


def _kill_later(kill: Callable[[], None]) -> None:
    """Kill a program of a cancelled operation, unless it ends by itself soon."""
    timer = threading.Timer(_PATIENCE_SECONDS, kill)
    timer.daemon = True
    timer.start()


def widen_pipes(*pipes: BinaryIO) -> None:
    """Enlarge a pipe's buffer for bulk data, where the limits of the system allow it."""
    for pipe in pipes:
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill it and wait for its end, which a system call on a mount that hangs delays without limit."""
    _send_kill(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_SECONDS)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    return -signal.SIGKILL if process.returncode is None else process.returncode


def _send_kill(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to it, and to its group where it leads one."""
    if process.returncode is not None:  # its process id may belong to another process by now
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _content(stream: BinaryIO) -> bytes:
    stream.seek(0)
    return stream.read()


def _program_name(program: str | bytes) -> str:
    return program if isinstance(program, str) else os.fsdecode(program)


_SHORTEST = 4  # shorter values are not secrets, and hiding them would garble texts
_NAMES = re.compile(
    r"(?i)secret|passw|passphrase|token|credential|access_key|api_?key|private_?key|authorization|cookie"
)
_IN_TEXT = (
    re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{4,}"),
    re.compile(r"(?i)(://)[^/\s@'\"]+(?=@)"),
    re.compile(
        r"(?i)([\w-]*(?:secret|passw\w*|passphrase|token|credential|signature|api[_-]?key|access[_-]?key(?:[_-]?id)?)[\w-]*"
        r"[\"']?\s*[:=]\s*[\"']?)[^\s\"'&,;}\])]{2,}"
    ),
    re.compile(r"\b()(?:AKIA|ASIA)[A-Z0-9]{12,}"),
    re.compile(r"()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)

_known: set[str] = set()
_hidden: dict[str, bytes] = {}


def hide_variable(name: str) -> None:
    """Remove a variable from the environment of programs that are started: jobs would inherit it."""
    value = os.environ.get(name) if _in_library else os.environ.pop(name, None)
    if value is not None:
        _hidden[name] = os.fsencode(value)


def hidden_variable(name: str) -> bytes | None:
    """Return the value of a hidden variable; None where it was not set."""
    hide_variable(name)
    return _hidden.get(name)


def remember_secret(*values: str | bytes | None) -> None:
    """Register secrets, which `without_secrets` then hides."""
    for value in values:
        text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value or ""
        if len(text.strip()) >= _SHORTEST:
            _known.add(text.strip())


def without_secrets(text: str) -> str:
    """Replace registered secrets, values of variables named like secrets, and text in the form of a secret by `***`."""
    found = {value for name, value in os.environ.items() if _NAMES.search(name)}
    found |= {value.decode("utf-8", "surrogateescape") for value in _hidden.values()} | _known
    for value in sorted(found, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, "***").replace(repr(value)[1:-1], "***")
    for pattern in _IN_TEXT:
        text = pattern.sub(r"\1***", text)
    return text


Found = TypeVar("Found")
_STRING = re.compile(r':\s*"([^"\\]{8,})"')
_CREDENTIALS_SECONDS = 120.0
_MOST_CREDENTIALS = 1024 * 1024


def credentials_from(
    command: Sequence[str], read: Callable[[bytes], Found], *, key: str, what: str, subject: str, hint: str
) -> Found:
    """Run a command and parse its output with `read`, which raises ValueError with a message that repeats none of it.

    `key` is the setting that names the command, `what` the expected output. Raises `AccessError("no-credentials")`,
    `NotFoundError` where there is no such program, `TryLaterError("timed-out")`.
    """
    finished = run(command, timeout=_CREDENTIALS_SECONDS, most=_MOST_CREDENTIALS)
    try:
        if finished.exit_code != 0:
            raise ValueError(f"its exit code is {finished.exit_code}")
        remember_secret(finished.stdout, *_STRING.findall(finished.stdout.decode("utf-8", "replace")))
        return read(finished.stdout)
    except ValueError as problem:
        raise AccessError(
            "no-credentials", f"the {key} gave no {what}: {problem}", subject=subject, hint=hint
        ) from None
