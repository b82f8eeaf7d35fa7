"""Run hibali's commands as forks of one process that has already imported it: docs/decisions/tests.md.

Imports take two thirds of a short command's time. Each command gets its own arguments, environment, folder and streams,
and a session of its own if the caller wants to kill it.
The settings that an interpreter reads at startup must equal those of this process; otherwise `run` declines.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tests.services.forked_agent import AgentForker
from tests.services.processes import MARK

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("hibali", "hibali_api", "hibali_cli", "hibali_plugins", "transfers", "registry", "runs")
# these modules are run or sent to other hosts, never imported
ENTRY = frozenset({"__main__", "generate", "dial", "flatten"})
# what commands import only when they need it
HEAVY = (
    "botocore.session",
    "botocore.auth",
    "botocore.httpsession",
    "boutiques.validator",
    "fsspec.implementations.http",
    "jsonschema",
    "obstore.store",
    "rfc8785",
    "tenacity",
    "tomlkit",
    "transfers.agent.serve",
)
EARLY = ("PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "MALLOC_")  # read at the interpreter's startup
MOST_REQUEST = 100_000  # bytes: a message is never truncated
MOST_INPUT = 65_536  # bytes: the capacity of a pipe
WAIT = struct.Struct("i")


@dataclass(frozen=True)
class Ended:
    """The result of a command: its exit code (negative for a signal) and its output."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Forked(subprocess.Popen[bytes]):
    """A started command, with the methods of the process that it would be without the fork server, whose child it is."""

    def __init__(self, words: Sequence[str | bytes], ending: int) -> None:
        self.args = [os.fsdecode(word) for word in words]
        self.stdin = self.stdout = self.stderr = None
        self._child_created = False  # nothing for Python to wait for
        self._ending = ending
        self._waiting = (
            threading.Lock()
        )  # of several threads that wait, one reads the exit code and closes the socket
        self.returncode: int | None = None
        self.pid = _read_number(ending)

    def poll(self) -> int | None:
        """See Popen."""
        return self._result(0)

    def wait(self, timeout: float | None = None) -> int:
        """See Popen."""
        code = self._result(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _result(self, seconds: float | None) -> int | None:
        if self._waiting.acquire(timeout=-1 if seconds is None else max(seconds, 0.0)):
            try:
                if self.returncode is None and _is_readable(self._ending, seconds):
                    self.returncode = _read_number(self._ending)
                    os.close(self._ending)  # until now its process id is its own, and can be sent a signal
            finally:
                self._waiting.release()
        return self.returncode


class ForkServer:
    """Start and use the process that has imported hibali; it ends with this process."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        environment.pop(MARK, None)  # it outlives the test that starts it
        self._early = _early(environment)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, "-P", "-m", "tests.services.fork_server", str(theirs.fileno())),
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                cwd=REPOSITORY,
            )
        self._connection = ours
        self._sending = threading.Lock()
        atexit.register(self._end)

    def _end(self) -> None:
        self._connection.close()
        self._process.wait()

    def run(
        self, words: Sequence[str | bytes], env: Mapping[str, str], cwd: Path, stdin: bytes, timeout: float
    ) -> Ended | None:
        """Run a command to its end; return None if it needs a new interpreter.

        Raises `subprocess.TimeoutExpired` after `timeout` seconds, as `subprocess.run` does.
        """
        request = self._request(words, env, cwd, own_session=False)
        if request is None or len(stdin) > MOST_INPUT:
            return None
        with contextlib.ExitStack() as opened:
            given, giving = os.pipe()
            out, err = os.memfd_create("out"), os.memfd_create("err")
            for number in (given, out, err):
                opened.callback(os.close, number)
            os.write(giving, stdin)
            os.close(giving)
            command = self._send(request, words, given, out, err)
            try:
                code = command.wait(timeout)
            except subprocess.TimeoutExpired:
                command.kill()
                command.wait()
                raise
            return Ended(code, _content(out), _content(err))

    def start(
        self, words: Sequence[str | bytes], env: Mapping[str, str], cwd: Path, out: int, err: int
    ) -> Forked | None:
        """Start a command in a session of its own, without input; return None if it needs a new interpreter."""
        request = self._request(words, env, cwd, own_session=True)
        if request is None:
            return None
        with Path(os.devnull).open("rb") as nothing:
            return self._send(request, words, nothing.fileno(), out, err)

    def _request(
        self, words: Sequence[str | bytes], env: Mapping[str, str], cwd: Path, *, own_session: bool
    ) -> bytes | None:
        request = json.dumps(
            [[os.fsdecode(word) for word in words], dict(env), str(cwd), own_session]
        ).encode()
        return None if _early(env) != self._early or len(request) > MOST_REQUEST else request

    def _send(self, request: bytes, words: Sequence[str | bytes], *streams: int) -> Forked:
        ending, ended = socket.socketpair()
        with self._sending, ended:
            socket.send_fds(self._connection, [request], [*streams, ended.fileno()])
        return Forked(words, ending.detach())


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(EARLY)}


def _content(number: int) -> bytes:
    os.lseek(number, 0, os.SEEK_SET)
    with open(number, "rb", closefd=False) as stream:
        return stream.read()


def _is_readable(number: int, seconds: float | None) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(number, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def _read_number(ending: int) -> int:
    """Read what a command's socket has: first its process id, then its exit code."""
    packed = os.read(ending, WAIT.size)
    if not packed:
        raise RuntimeError("the fork server has ended")
    return int(WAIT.unpack(packed)[0])


def main() -> None:
    """Import everything, then start the requested commands until the client disconnects."""
    _import_all()
    gc.collect()
    gc.freeze()  # otherwise each command goes through all that was imported, and copies it
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # as a command's first statement does: no traceback before it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    connection = socket.socket(fileno=int(sys.argv[1]))
    # by process descriptor: the process id, and the descriptor to which its exit code is written
    running: dict[int, tuple[int, int]] = {}
    # by the latter: the process id, which is kept until the client has the exit code
    ended: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in running:
                    pid, ending = running.pop(key.fd)
                    _send_number(ending, _exit_code(pid))
                    ended[ending] = pid
                    selector.register(ending, selectors.EVENT_READ)
                if key.fd in ended:
                    os.waitpid(ended.pop(key.fd), 0)
                if key.fd != connection.fileno():
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    continue
                request, numbers, _, _ = socket.recv_fds(connection, MOST_REQUEST + 1, 4)
                if not request:
                    return
                pid = os.fork()
                if pid == 0:
                    _run_command(request, numbers)
                for number in numbers[:3]:
                    os.close(number)
                watched = os.pidfd_open(pid)
                running[watched] = (pid, numbers[3])
                selector.register(watched, selectors.EVENT_READ)


def _exit_code(pid: int) -> int:
    """Return the exit code of an ended process, whose process id it keeps."""
    result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if result is None:
        raise RuntimeError(f"process {pid} has not ended")
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def _send_number(descriptor: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client stopped waiting
        os.write(descriptor, WAIT.pack(number))


def _import_all() -> None:
    for name in HEAVY:
        import_module(name)
    for package in PACKAGES:
        folder = import_module(package).__path__
        for found in pkgutil.walk_packages(folder, f"{package}."):
            if found.name.startswith("transfers.agent.") or found.name.rpartition(".")[2] in ENTRY:
                continue
            import_module(found.name)


def _run_command(request: bytes, numbers: Sequence[int]) -> NoReturn:
    """Run the command in this process, which keeps only the imported modules."""
    words, environment, cwd, own_session = json.loads(request)
    if own_session:
        os.setsid()
    _send_number(numbers[3], os.getpid())  # not before: the client kills the session's process group
    for target in range(3):
        os.dup2(numbers[target], target)
    os.closerange(3, 1024)  # the objects that own these descriptors are never finalized: see `os._exit` below
    if os.isatty(1):  # the streams of this process were made for what it had itself, which may be a file
        sys.stdout, sys.stderr = (
            os.fdopen(number, "w", encoding=each.encoding, errors=each.errors, closefd=False)
            for number, each in ((1, sys.stdout), (2, sys.stderr))
        )
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(cwd)
    sys.argv = ["hibali", *words]
    subprocess.Popen = AgentForker  # type: ignore[misc]
    code = _run()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 120
    os._exit(code)


def _run() -> int:
    from hibali_cli.main import main as run

    try:
        run()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1 if leaving.code else 0
    except BaseException:  # noqa: BLE001 - print the traceback as an interpreter does
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    main()
