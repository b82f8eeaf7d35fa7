"""Run one command and write its resource usage: `measured.py REPORT COMMAND...`.

A child process starts with the peak memory of its parent. This script runs in a small process of its own,
so that the peak it reads afterwards belongs to the command.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(report: str, command: list[str]) -> None:
    """Write wall seconds, CPU seconds and peak bytes of the command and its reaped descendants."""
    began = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, os.environ)
    _, status, used = os.wait4(pid, 0)
    seconds = time.perf_counter() - began
    measured = {
        "exit": os.waitstatus_to_exitcode(status),
        "seconds": seconds,
        "cpu": used.ru_utime + used.ru_stime,
        "peak": used.ru_maxrss * 1024,
    }
    Path(report).write_text(json.dumps(measured))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
