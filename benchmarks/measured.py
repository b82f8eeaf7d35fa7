"""Runs one command and writes what it took: `measured.py REPORT COMMAND...`, alone in a small process.

A child begins with the peak memory of the process it was forked from; this one is small, so that the
peak it reads afterwards is the command's own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(report: str, command: list[str]) -> None:
    """Write seconds, CPU seconds and peak of the command and of all its descendants that were waited for."""
    began = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, os.environ)
    _, status, used = os.wait4(pid, 0)
    seconds = time.perf_counter() - began
    told = {
        "exit": os.waitstatus_to_exitcode(status),
        "seconds": seconds,
        "cpu": used.ru_utime + used.ru_stime,
        "peak": used.ru_maxrss * 1024,
    }
    Path(report).write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
