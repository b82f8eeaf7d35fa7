"""What somebody is told of schedules, and what he was told today already; nothing here looks at a clock or tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from hibali.amounts import time_words
from runs.unattended.credentials import Credential
from runs.unattended.firings import WELL, Firing

Event = Literal["failed", "works-again", "silent", "expires", "trial"]


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell of a schedule. `trouble` is what makes two of them the same, told once a day."""

    event: Event
    schedule: str
    trouble: str
    message: str
    hint: str = ""
    firing: Firing | None = None
    expires: datetime | None = None

    def to_record(self, at: str, host: str) -> dict[str, Any]:
        """The fields of a JSON line of kind `notice`."""
        return {
            "event": self.event,
            "schedule": self.schedule,
            "at": at,
            "host": host,
            "message": self.message,
            "hint": self.hint,
            "firing": None if self.firing is None else self.firing.to_record(),
            "expires": None if self.expires is None else f"{self.expires:%Y-%m-%dT%H:%M:%SZ}",
        }


@dataclass(frozen=True, slots=True)
class Told:
    """What was told of a schedule: each trouble with its last day, and whether a failure is open that works again some time.

    `seen` is the last firing whose end was looked at.
    """

    days: Mapping[str, str] = field(default_factory=dict)
    failing: bool = False
    seen: str = ""

    def to_record(self) -> dict[str, Any]:
        """As it is kept."""
        return {"schema": 1, "days": dict(self.days), "failing": self.failing, "seen": self.seen}

    def after(self, notice: Notice, day: str) -> Told:
        """What is known once this was told."""
        recent = {trouble: on for trouble, on in self.days.items() if on >= day[:4]}
        failing = {"failed": True, "works-again": False}.get(notice.event, self.failing)
        seen = self.seen if notice.firing is None else notice.firing.id
        return Told({**recent, notice.trouble: day}, failing, seen)

    def is_news(self, notice: Notice, day: str) -> bool:
        """Whether it has not been told on that day; that it works again always is, after a failure that was told."""
        return notice.event == "works-again" or self.days.get(notice.trouble) != day


def read_told(record: Any) -> Told:
    """What `to_record` kept; nothing where it is something else."""
    if not isinstance(record, dict) or not isinstance(record.get("days"), dict):
        return Told()
    days = {str(name): str(day) for name, day in record["days"].items()}
    return Told(days, bool(record.get("failing")), str(record.get("seen", "")))


def notice_of_end(firing: Firing, told: Told) -> Notice | None:
    """What to tell when a firing has ended; the same exit code is the same trouble, however it is worded."""
    if firing.state == "broken":
        message = f"{firing.schedule} was broken off: whatever ran it is gone"
        hint = f"hibali schedule run {firing.schedule}"
        return Notice("failed", firing.schedule, "failed-broken", message, hint, firing)
    if firing.exit is None:
        return None
    if firing.exit in WELL:
        if not told.failing:
            return None
        return Notice(
            "works-again", firing.schedule, "works-again", f"{firing.schedule} works again", "", firing
        )
    about = f"{firing.about}: " if firing.about else ""
    why = f": {about}{firing.message}" if firing.message else ""
    return Notice(
        "failed",
        firing.schedule,
        f"failed-{firing.exit}",
        f"{firing.schedule} ended with {firing.exit}{why}",
        firing.hint or f"hibali schedule log {firing.schedule}",
        firing,
    )


def notice_of_silence(
    schedule: str, firings: Iterable[Firing], since: datetime, now: datetime, longest: timedelta
) -> Notice | None:
    """That nothing has run for too long, whether it failed or not."""
    last = since
    for firing in firings:
        if firing.state != "skipped":
            last = max(last, datetime.fromisoformat(firing.ended or firing.began))
            if firing.state == "running":
                return None  # how long that may take is --max-time
    silence = now - last
    if silence <= longest:
        return None
    return Notice(
        "silent",
        schedule,
        "silent",
        f"{schedule} has not run for {time_words(silence.total_seconds())}",
        f"hibali schedule show {schedule}",
    )


def notices_of_expiry(
    schedule: str, credentials: Iterable[Credential], now: datetime, within: timedelta
) -> list[Notice]:
    """One for each credential that has expired, or will soon."""
    found = []
    for each in credentials:
        if each.expires is not None and each.expires - now <= within:
            left = (each.expires - now).total_seconds()
            when = f"expires in {time_words(left)}" if left > 0 else "has expired"
            found.append(
                Notice(
                    "expires",
                    schedule,
                    f"expires-{each.kind}-{each.site}",
                    f"{each.words} of {each.site} {when}",
                    each.renew,
                    None,
                    each.expires,
                )
            )
    return found
