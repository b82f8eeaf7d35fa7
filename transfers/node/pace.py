"""Keep limits of a shard: bytes or requests a second."""

import threading
import time


class Pace(object):
    """Limits how much of something a shard does a second, on average; for several threads. What is not used is not saved up."""

    def __init__(self, rate: float) -> None:
        """`rate` is the most a second, 0 for no limit."""
        self._rate = rate
        self._guard = threading.Lock()
        self._free_at = 0.0

    def acquire(self, amount: float) -> None:
        """Wait until so much more may be done."""
        if not self._rate:
            return
        with self._guard:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + amount / self._rate
        time.sleep(max(0.0, start - now))
