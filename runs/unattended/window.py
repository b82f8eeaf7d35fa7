"""Whether a schedule is to be run now, when it is tried again, and how long a jitter waits; nothing here looks at a clock."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Literal

from runs.unattended.expression import Expression

_EARLY = timedelta(seconds=2)  # a clock that is being set must not take the night's run away
_LATE = timedelta(minutes=5)  # whatever fires at set times does it sooner, on a busy machine too
_FIRST_PAUSE, _LONGEST_PAUSE = 60.0, 900.0


@dataclass(frozen=True, slots=True)
class Decision:
    """`run`, `nothing` or `missed`, which is to be noted; `due` is which time it is about, `missed` how many others are lost."""

    what: Literal["run", "nothing", "missed"]
    due: datetime | None = None
    made_up: bool = False
    missed: int = 0


def decide(
    expression: Expression,
    now: datetime,
    zone: tzinfo,
    *,
    handled: datetime,
    make_up: bool,
    only_missed: bool = False,
) -> Decision:
    """What is to be done at `now`; `handled` is the last due time that something is known of, or since when the schedule is.

    `make_up`: a missed time is run once, however many were missed. `only_missed` leaves what is due just now to its own line.
    """
    due = expression.until(now + _EARLY, zone)
    if due <= handled:
        return Decision("nothing")
    late = now - due > _LATE
    missed = expression.count(handled, due, zone)
    if not late:
        return Decision("nothing") if only_missed else Decision("run", due, missed=missed)
    if make_up:
        return Decision("run", due, made_up=True, missed=missed)
    return Decision("missed", due, missed=missed)


def pause_before_retry(failures: int, elapsed: float, retry_for: float) -> float | None:
    """Seconds until it is tried again after so many failures, ever more of them; None where the window is over by then."""
    first = min(_FIRST_PAUSE, max(1.0, retry_for / 20))
    pause = float(min(_LONGEST_PAUSE, first * 2.0 ** min(failures - 1, 20)))
    return pause if elapsed + pause <= retry_for else None


def jitter_of(seconds: float, *what: str) -> float:
    """From 0 to `seconds`, the same for the same words: spread over schedules, machines and nights."""
    digest = hashlib.sha256("\0".join(what).encode("utf-8", "surrogateescape")).digest()
    return seconds * int.from_bytes(digest[:8]) / 2**64
