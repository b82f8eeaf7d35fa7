"""Wait until other processes leave the machine to the benchmark, or refuse a case."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

MOST_LOAD = 1.0  # a case is refused above this load average
# The benchmark's own load of three busy processes falls below 1 in 66 s, as the average of one minute decays.
SETTLING_SECONDS = 90.0


def load_average() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def wait_for_low_load(
    until: float,
    *,
    most: float = MOST_LOAD,
    read: Callable[[], float] = load_average,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Wait until the load average is at most `most`, or the clock shows `until`; return the last load average."""
    load = read()
    while load > most and clock() < until:
        sleep(1)
        load = read()
    return load
