"""Notice that nothing moves: measure how long, and the error for it."""

from __future__ import annotations

from hibali.errors import TryLaterError


def stalled(seconds: float, subject: str) -> TryLaterError:
    """Return the error for a connection that hibali ended after no progress for so long."""
    return TryLaterError(
        "stalled",
        f"no progress for {seconds:.0f} s: a filesystem there may hang, so hibali ended the connection",
        subject=subject,
        hint="Check there that the filesystem answers, then run the same command again to resume. "
        "If it is only slow, increase `stall` in the site's limits.",
    )


class StallClock:
    """Measure how long a value stays the same, in periods, so that time in which this process was suspended does not count."""

    def __init__(self, limit: float) -> None:
        """`limit` is in seconds, 0 for none."""
        self._limit = limit
        self._before: object = None
        self._seconds = 0.0

    def is_over(self, value: object, period: float) -> bool:
        """Return whether `value` was the same for `limit` seconds; call it after each period. None: nothing is awaited."""
        self._seconds = self._seconds + period if value is not None and value == self._before else 0.0
        self._before = value
        return bool(self._limit) and self._seconds >= self._limit * 0.999  # a sum of periods is not exact
