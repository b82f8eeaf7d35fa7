"""Compare durations and schedules without depending on the second in which a test runs."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:[0-9]+ (?:s|min|h|d)(?: |$))+")


def seconds_of(duration: str) -> int:
    """Return the seconds in a duration as hibali writes it, such as `2 h 59 min`; its last unit is its
    precision."""
    assert _DURATION.fullmatch(duration), duration
    words = duration.split()
    return sum(int(number) * _SECONDS[unit] for number, unit in zip(words[::2], words[1::2], strict=True))


def half_a_day_away(days: str = "* * *") -> str:
    """Return a cron expression that is due in twelve hours, on these days: no test runs at that time."""
    then = datetime.now().astimezone() + timedelta(hours=12)
    return f"{then.minute} {then.hour} {days}"
