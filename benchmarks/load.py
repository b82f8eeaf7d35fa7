"""Wait until other processes leave the machine to the benchmark, or refuse a case."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

MOST_LOAD = 1.0  # a case is refused above this load
PATIENCE_SECONDS = 300.0  # how long a case waits for other processes
_SAMPLES, _INTERVAL = 50, 0.2  # ten seconds in all
_STATES = re.compile(r"^procs_(?:running|blocked) ([0-9]+)$", re.MULTILINE)


def measure_load(
    read: Callable[[], str] = Path("/proc/stat").read_text, sleep: Callable[[float], None] = time.sleep
) -> float:
    """Return the load average of the next ten seconds: how many processes run or wait for a disk (proc(5), stat).

    The average of one minute that the kernel keeps would contain the case before, whose load takes a minute to decay.
    """
    found = 0
    for _ in range(_SAMPLES):
        sleep(_INTERVAL)
        found += sum(map(int, _STATES.findall(read()))) - 1  # without this process
    return found / _SAMPLES


def wait_for_low_load(
    until: float,
    *,
    most: float = MOST_LOAD,
    measured: Callable[[], float] = measure_load,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Wait until the load is at most `most`, or the clock shows `until`; return the last load."""
    load = measured()
    while load > most and clock() < until:
        load = measured()
    return load
