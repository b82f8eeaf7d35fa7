"""When a schedule is due: five fields as Debian's cron reads them, with its ways at the change of clocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from itertools import pairwise
from typing import Any

from hibali.errors import UsageError

_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# What crontab(5) promises; cronsim knows more, such as L and #, which a cron daemon would refuse.
_FIELD = re.compile(
    r"(?:\*|[0-9]{1,2}(?:-[0-9]{1,2})?|[a-z]{3}(?:-[a-z]{3})?)(?:/[0-9]{1,2})?", re.IGNORECASE
)
_WEEKDAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
_LOOKED_AHEAD = 16


@dataclass(frozen=True, slots=True)
class Expression:
    """A cron expression of five fields, known to be one."""

    text: str

    def after(self, moment: datetime, zone: tzinfo) -> datetime:
        """The first time it is due later than that, in UTC."""
        return next(self._times(moment.astimezone(zone).replace(microsecond=0), reverse=False))

    def until(self, moment: datetime, zone: tzinfo) -> datetime:
        """The last time it was due then or before, in UTC."""
        # a fraction of a second lets the very second count, too
        return next(self._times(moment.astimezone(zone).replace(microsecond=1), reverse=True))

    def count(self, begin: datetime, end: datetime, zone: tzinfo, *, most: int = 1000) -> int:
        """How often it was due later than `begin` and before `end`; `most` where it was more often."""
        found = 0
        for moment in self._times(begin.astimezone(zone).replace(microsecond=0), reverse=False):
            if moment >= end or found >= most:
                break
            found += 1
        return found

    def longest_gap(self, moment: datetime, zone: tzinfo) -> timedelta:
        """The longest time between two of the next times it is due."""
        times = self._times(moment.astimezone(zone).replace(microsecond=0), reverse=False)
        ahead = [next(times) for _ in range(_LOOKED_AHEAD)]
        return max(later - earlier for earlier, later in pairwise(ahead))

    def on_calendar(self) -> list[str]:
        """The same in the words of systemd.time(7); two lines where a day of the month or one of the week will do."""
        from cronsim import CronSim

        found = CronSim(self.text, datetime(2000, 1, 1, tzinfo=UTC))
        fields = self.text.split()
        time = f"{_listed(found.hours, 24)}:{_listed(found.minutes, 60)}:00"
        date = f"*-{_listed(found.months, 12)}"
        days = _listed(found.days, 31)
        on = ",".join(_WEEKDAYS[each] for each in sorted({each % 7 for each in _plain(found.weekdays)}))
        if fields[4].startswith("*") and fields[4] == "*":
            return [f"{date}-{days} {time}"]
        if fields[2] == "*":
            return [f"{on} {date}-* {time}"]
        if found.day_and:
            return [f"{on} {date}-{days} {time}"]
        return [f"{date}-{days} {time}", f"{on} {date}-* {time}"]

    def _times(self, moment: datetime, *, reverse: bool) -> Iterator[datetime]:
        from cronsim import CronSim

        for found in CronSim(self.text, moment, reverse=reverse):
            yield found.astimezone(UTC)


@cache
def read_expression(text: str) -> Expression:
    """The expression; raises `UsageError` for what is none, for @reboot, and for one that is never due."""
    from cronsim import CronSim, CronSimError

    written = _NAMED.get(text.strip().lower(), text)
    fields = written.split()
    if len(fields) != 5 or not all(_FIELD.fullmatch(part) for field in fields for part in field.split(",")):
        raise _no_expression(text)
    plain = " ".join(fields)
    try:
        next(CronSim(plain, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration, RuntimeError):
        raise _no_expression(text) from None
    return Expression(plain)


def _no_expression(text: str) -> UsageError:
    return UsageError(
        "bad-cron",
        f"{text!r} is not minute, hour, day of the month, month, day of the week; or is never due",
        about="--cron",
        hint='For every night at three: --cron "0 3 * * *"',
    )


def _listed(values: set[Any], size: int) -> str:
    plain = sorted(_plain(values))
    return "*" if len(plain) == size else ",".join(f"{each:02d}" for each in plain)


def _plain(values: set[Any]) -> list[int]:
    return [each for each in values if isinstance(each, int)]
