"""The schedules as the report sees them, and what they need that will expire."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from runs.overview.health import Plan
from runs.overview.model import Fading
from runs.unattended.credentials import Credential
from runs.unattended.schedule import Schedule, Schedules
from runs.unattended.tend import longest_silence


def plans_of(schedules: Schedules) -> list[Plan]:
    """All of them."""
    now = datetime.now(UTC)
    return [_plan_of(each, now) for each in schedules.schedules.values()]


def _plan_of(schedule: Schedule, now: datetime) -> Plan:
    return Plan(
        schedule.name,
        shlex.join(["hibali", *schedule.command]),
        schedule.cron.text,
        paused=schedule.paused,
        silence=longest_silence(schedule, now).total_seconds(),
        since=schedule.since.timestamp(),
    )


def expiring(credentials: Iterable[Credential], within: timedelta) -> list[Fading]:
    """Those that are good for no longer than that, the first first; the same one is told once."""
    last = datetime.now(UTC) + within
    found = {
        (each.site, each.words): Fading(
            f"{each.words} expires",
            each.site,
            f"{each.expires.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
            each.renew,
        )
        for each in credentials
        if each.expires is not None and each.expires <= last
    }
    return sorted(found.values(), key=lambda each: each.when)
