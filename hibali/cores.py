"""Count the cores of this machine that one command may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_PROCESSES = Path("/proc")
_FIRST_PERSON = 1000  # systems give smaller user ids to services (login.defs: UID_MIN)
_NOBODY = 65534


def usable_cores() -> int:
    """Return how many cores this process may use: those of its affinity, within the CPU quota of its control groups."""
    return max(1, int(min(len(os.sched_getaffinity(0)), _quota())))


def is_shared_machine() -> bool:
    """Return whether other people have processes here, as on a login node, or whether that is hidden."""
    if not (_PROCESSES / "1").exists():  # hidepid=2
        return True
    owners = {_owner(entry) for entry in os.scandir(_PROCESSES) if entry.name.isdigit()}
    return any(owner >= _FIRST_PERSON for owner in owners - {os.getuid(), _NOBODY})


def _owner(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_uid
    except OSError:  # it has ended
        return 0


def _quota() -> float:
    """Return the smallest quota in cores of this process's control group and those above it; no limit is infinity."""
    try:
        lines = (_PROCESSES / "self/cgroup").read_text().splitlines()
    except OSError:
        return math.inf
    quotas = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = _CGROUPS
        elif "cpu" in controllers.split(","):
            top = _CGROUPS / "cpu"
        else:
            continue
        folder = top / path.strip("/")
        while folder.is_relative_to(top):
            quotas.append(_quota_of(folder))
            folder = folder.parent
    return min(quotas)


def _quota_of(group: Path) -> float:
    """Return the quota of one control group, of version 2 (`cpu.max`) or 1."""
    try:
        words = (group / "cpu.max").read_text().split()
    except OSError:
        try:
            words = [(group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")]
        except OSError:
            return math.inf
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):  # "max"
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf
