"""Runs a command as a contender and reads what it took, its kept logins included."""

from __future__ import annotations

import contextlib
import json
import os
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
LONGEST_SECONDS = 3600


class FailedError(Exception):
    """A contender's command failed, or its target is not complete."""


def measure(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    logins: Path | None = None,
    watch: bool = False,
) -> Sample:
    """Run it to its end in `folder`; raises `FailedError` with the end of what it said.

    `logins` is where its ssh masters keep their sockets: they are nobody's children, and encrypt what goes
    over them. With `watch` the memory of all its processes together is looked at too, twenty times a second.
    """
    report, log = folder / "report.json", folder / "said"
    report.unlink(missing_ok=True)
    before = _cpu_of(_masters(logins))
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LAUNCHER), str(report), *words],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said if not watch else subprocess.DEVNULL,  # a plan of a million lines
            stderr=said,
            start_new_session=True,
        )
        with _watching(process.pid, watch=watch) as peaks:
            _wait(process)
    told: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {"exit": "nothing: killed"}
    if told["exit"] != 0:
        tail = log.read_bytes()[-400:].decode(errors="backslashreplace").strip()
        raise FailedError(f"ended with {told['exit']}: {' '.join(tail.split())}")
    after = _cpu_of(_masters(logins))
    kept = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
    return Sample(told["seconds"], told["cpu"] + kept, told["peak"], max(peaks, default=0))


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
    """End the kept logins whose sockets lie there, so that the next command logs in."""
    for pid in _masters(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 10
    while _masters(folder):
        if time.monotonic() > deadline:
            raise FailedError(f"the logins kept in {folder} do not end")
        time.sleep(0.01)


def _masters(folder: Path | None) -> list[int]:
    """Running ssh masters, by their words or, where ssh wrote its title over them, by that: both name the socket."""
    found = []
    for entry in Path("/proc").iterdir() if folder else ():
        with contextlib.suppress(OSError, ValueError):
            title = (entry / "cmdline").read_bytes()
            is_master = b"ControlMaster=yes" in title or title.startswith(b"ssh: ")
            if is_master and title.startswith(b"ssh") and os.fsencode(f"{folder}/") in title:
                found.append(int(entry.name))
    return found


def _cpu_of(pids: Sequence[int]) -> dict[int, float]:
    """CPU seconds of each process so far (proc(5), stat)."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            found[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
    return found


@contextlib.contextmanager
def _watching(launcher: int, *, watch: bool) -> Iterator[list[int]]:
    """Gathers what all processes below the launcher hold together, shared pages counted once for each."""
    peaks: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            peaks.append(sum(map(_resident, _below(launcher))))

    thread = threading.Thread(target=look, daemon=True)
    if watch:
        thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        if watch:
            thread.join()


def _below(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_below(child)]
    return found


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0
