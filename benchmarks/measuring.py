"""Measure a contender's command, including the CPU time of its persistent ssh connections."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.samples import Sample

_LAUNCHER = Path(__file__).with_name("measured.py")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")
_HASHED_BYTES = 256 * 1024 * 1024
LONGEST_SECONDS = 3600


class FailedError(Exception):
    """A contender's command failed, or its target is not complete."""


def measure(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    logins: Path | None = None,
    watch: bool = False,
) -> Sample:
    """Run a command to its end in `folder` and return its resource usage.

    Args:
        argv: The command.
        environment: The command's complete environment.
        folder: Working directory, which also receives the log.
        logins: Folder of the control sockets of its ssh masters. They are not child processes, but they do the encryption.
        watch: Also sample the memory of all its processes together, twenty times a second.

    Raises:
        FailedError: The command failed; the message has the end of its output.
    """
    report, log = folder / "report.json", folder / "output"
    report.unlink(missing_ok=True)
    before = _cpu_of(_ssh_masters(logins))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LAUNCHER), str(report), *argv],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output if not watch else subprocess.DEVNULL,  # a plan can have a million lines
            stderr=output,
            start_new_session=True,
        )
        with _sample_memory(process.pid, watch=watch) as peaks:
            _wait(process)
    used: dict[str, Any] = (
        json.loads(report.read_text()) if report.exists() else {"exit": "no status (killed)"}
    )
    if used["exit"] != 0:
        tail = log.read_bytes()[-400:].decode(errors="backslashreplace").strip()
        raise FailedError(f"exit status {used['exit']}: {' '.join(tail.split())}")
    after = _cpu_of(_ssh_masters(logins))
    login_seconds = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
    return Sample(used["seconds"], used["cpu"] + login_seconds, used["peak"], max(peaks, default=0))


def hash_rate() -> float:
    """Return how many bytes one CPU second of sha256 takes now, in pieces that stay in the cache."""
    piece = bytes(_HASHED_BYTES // 1024)
    summed = hashlib.sha256()
    before = time.thread_time()
    for _ in range(1024):
        summed.update(piece)
    return _HASHED_BYTES / (time.thread_time() - before)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(LONGEST_SECONDS)
    except BaseException as problem:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(problem, subprocess.TimeoutExpired):
            raise


def end_logins(folder: Path) -> None:
    """End the ssh masters whose sockets are in `folder`, so that the next command logs in again.

    What hibali notes beside its sockets is removed, too, as after a reboot. Otherwise it would wait after a few rounds,
    because it starts at most eight logins a minute.
    """
    for pid in _ssh_masters(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 10
    while _ssh_masters(folder):
        if time.monotonic() > deadline:
            raise FailedError(f"the ssh masters of {folder} did not end within 10 s of SIGTERM")
        time.sleep(0.01)
    shutil.rmtree(folder / "hibali", ignore_errors=True)


def _ssh_masters(folder: Path | None) -> list[int]:
    """Find running ssh masters by their arguments or their process title; both contain the socket's path."""
    found = []
    for entry in Path("/proc").iterdir() if folder else ():
        with contextlib.suppress(OSError, ValueError):
            title = (entry / "cmdline").read_bytes()
            is_master = b"ControlMaster=yes" in title or title.startswith(b"ssh: ")
            if is_master and title.startswith(b"ssh") and os.fsencode(f"{folder}/") in title:
                found.append(int(entry.name))
    return found


def _cpu_of(pids: Sequence[int]) -> dict[int, float]:
    """Return the CPU seconds that each process has used (proc(5), stat)."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            found[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
    return found


@contextlib.contextmanager
def _sample_memory(launcher: int, *, watch: bool) -> Iterator[list[int]]:
    """Sample the resident memory of all descendants of the launcher; shared pages count once per process."""
    peaks: list[int] = []
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.wait(0.05):
            peaks.append(sum(map(_resident, _descendants(launcher))))

    thread = threading.Thread(target=poll, daemon=True)
    if watch:
        thread.start()
    try:
        yield peaks
    finally:
        stopped.set()
        if watch:
            thread.join()


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0
