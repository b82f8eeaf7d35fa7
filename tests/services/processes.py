"""Start, await and end the background processes of a services folder, including their children."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RECORD = "started"  # file in the session's folder with pid and start time of each server, because sshd overwrites its environment
MARK = "TEST_SERVICES"  # set in the environment of every server and its children

# With `"$@" &` alone this process would remain the parent, and Python warns about children that outlive their Popen.
_LAUNCH = 'log=$1; shift; exec 3>&1; { exec 3>&-; exec "$@" </dev/null >>"$log" 2>&1; } & echo $! >&3'

_RESERVED: list[socket.socket] = []


class MissingPackageError(Exception):
    """A server's program is not installed, with the Debian or Python package in the message, or needs rights that this account lacks."""


class ServiceError(Exception):
    """A server that is installed did not start; the message has the end of its log."""


def program(name: str, package: str) -> str:
    """Return the absolute path of an installed program; raise `MissingPackageError` with its package otherwise."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if found is None:
        raise MissingPackageError(f"{name} is missing: install the package {package}")
    return found


def server_environment(session: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a clean environment with the variable by which `end_all` finds remaining processes."""
    return {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", MARK: f"{session}/", **(extra or {})}


def free_port() -> int:
    """Find a free TCP port below the ephemeral range such that port + 10,000 is free too (SeaweedFS uses both).

    The port is reserved until this process ends, so that no other test suite on this machine uses it before a server does.
    """
    for _ in range(200):
        port = 11_000 + secrets.randbelow(9_000)
        if _reserve(port) and _can_bind(port) and _can_bind(port + 10_000):
            return port
    raise ServiceError("no free port found on 127.0.0.1")


def start(
    session: Path, words: Iterable[str | Path], log: Path, environment: Mapping[str, str] | None = None
) -> int:
    """Start a server in a new session, with its output appended to `log`; return its pid."""
    answer = subprocess.run(
        ["/bin/sh", "-c", _LAUNCH, "sh", str(log), *map(str, words)],
        env=server_environment(session, environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    pid = int(answer.stdout)
    with (session / RECORD).open("a") as record:
        record.write(f"{pid} {start_time(pid)}\n")
    return pid


# of servers that refuse to run as root: the account must have access to the files of root's tests
_CAPABILITIES = "+dac_override,+dac_read_search,+chown"
_NOBODY = 65534


def without_root(words: Sequence[str | Path], *owned: Path, owner_of_all: bool = False) -> list[str | Path]:
    """Return the words that start a server as another account if this is root; the paths are given to that account.

    With `owner_of_all` it may change the modes of all files: XRootD would close the folders above its own to everybody else.
    """
    if os.geteuid() != 0:
        return [*words]
    for path in owned:
        os.chown(path, _NOBODY, _NOBODY)
    capabilities = _CAPABILITIES + (",+fowner" if owner_of_all else "")
    return [
        program("setpriv", "util-linux"),
        f"--reuid={_NOBODY}",
        f"--regid={_NOBODY}",
        "--clear-groups",
        f"--inh-caps={capabilities}",
        f"--ambient-caps={capabilities}",
        *words,
    ]


def wait_until(ready: Callable[[], bool], pid: int, log: Path, seconds: float = 60) -> None:
    """Poll until the server is ready; raise `ServiceError` with its log if it ended or is not ready in time."""
    deadline = time.monotonic() + seconds
    while not ready():
        late = time.monotonic() > deadline
        if late or not is_alive(pid):
            text = log.read_text(errors="replace") if log.exists() else ""
            reason = f"was not ready after {seconds:.0f} s" if late else "ended"
            raise ServiceError(f"{log.stem} {reason}; the end of {log}:\n{text[-2000:]}")
        time.sleep(0.02)


def answers(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether a server accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def succeeds(words: Iterable[str | Path], environment: Mapping[str, str]) -> bool:
    """Return whether a command succeeds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return (
            subprocess.run([*words], env=environment, capture_output=True, check=False, timeout=10).returncode
            == 0
        )
    return False


def is_alive(pid: int) -> bool:
    """Return whether the process is running; a zombie is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b") ")[2][:1] not in b"ZX"


def start_time(pid: int) -> str:
    """Return the process's start time in clock ticks since boot (proc(5)); empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()[19]
    except OSError:
        return ""


def end_all(marked: Path, older: frozenset[int] = frozenset()) -> None:
    """Kill the processes started for the folder `marked`: those with its path in their environment, the recorded ones, and
    their descendants, except this process and its ancestors.

    SIGKILL is safe because the folder with their state is deleted afterwards. `older` ones than the folder are not read.
    """
    for _ in range(50):
        found = processes_of(marked, older)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def processes_of(marked: Path, older: frozenset[int] = frozenset()) -> set[int]:
    """Return the processes that `end_all` kills.

    Nearly always there are none, after each of thousands of tests: only what tells that is read of every younger process.
    """
    found = _recorded(marked)
    mark, named = f"{MARK}={marked}/".encode(), os.fsencode(marked) + b"/"
    younger = running_processes() - older
    found.update(pid for pid in younger if mark in _read(pid, "environ") or _names_in_title(pid, named))
    if not found:
        return found
    parents = _parents()
    found = {pid for pid in parents if any(step in found for step in _ancestry(pid, parents))}
    return found - set(_ancestry(os.getpid(), parents))


def is_of_this_test(pid: int, session: Path) -> bool:
    """Return whether this process, a server of the session or a command of the test started a process; False if it has ended."""
    started = _recorded(session) | {os.getpid()}
    mark = f"{MARK}={os.environ[MARK]}".encode()
    line = _ancestry(pid, _parents())
    return any(step in started or mark in _read(step, "environ") for step in line)


def _recorded(folder: Path) -> set[int]:
    """Return the servers of a folder that are running."""
    record = folder / RECORD
    recorded = [line.split() for line in record.read_text().splitlines()] if record.exists() else []
    return {int(pid) for pid, *began in recorded if began == [start_time(int(pid))]}


def descendants_of(pid: int) -> set[int]:
    """Return the processes that descend from this one, without it."""
    parents = _parents()
    return {other for other in parents if pid in _ancestry(other, parents)} - {pid}


def running_processes() -> frozenset[int]:
    """Return the ids of all processes of this machine."""
    return frozenset(int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - after every test


def _read(pid: int, name: str) -> bytes:
    """Return a file of /proc/PID; empty if the process ended or belongs to another account."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _parents() -> dict[int, int]:
    """Return the parent of every living process."""
    states = ((pid, _read(pid, "stat").rpartition(b") ")[2].split()) for pid in running_processes())
    return {pid: int(state[1]) for pid, state in states if len(state) > 1 and state[0] not in b"ZX"}


def _names_in_title(pid: int, named: bytes) -> bool:
    """Find processes by title: ssh masters overwrite their environment and podman's monitor drops it, but both titles have the folder."""
    title = _read(pid, "cmdline")
    return named in title and title.startswith((b"ssh:", b"conmon", b"/usr/bin/conmon"))


def _ancestry(pid: int, parents: Mapping[int, int]) -> list[int]:
    line = []
    while pid > 1:
        line.append(pid)
        pid = parents.get(pid, 0)
    return line


def _reserve(port: int) -> bool:
    """Reserve the port with an abstract Unix socket name, which the kernel frees when this process ends."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0hibali-test-port-{port}")
    except OSError:
        reservation.close()
        return False
    _RESERVED.append(reservation)
    return True


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
