"""Whether a schedule is well, and if not, since when and what to do; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from hibali.amounts import time_words
from runs.unattended.firings import WELL, Firing
from transfers.history.operation import moment_of

STRIP = 30  # firings that are shown of each schedule


class Health(StrEnum):
    """What is said of a schedule in a word."""

    WELL = "well"
    NEEDS_YOU = "needs you"
    PAUSED = "paused"
    NEW = "not fired yet"


class Mark(StrEnum):
    """How one firing is drawn."""

    DONE = "done"
    INCOMPLETE = "incomplete"
    LATER = "to be tried again"
    FAILED = "failed"
    BROKEN = "broken off"
    SKIPPED = "skipped"
    RUNNING = "running"


_MARKS = {"done": Mark.DONE, "broken": Mark.BROKEN, "skipped": Mark.SKIPPED, "running": Mark.RUNNING}
_BAD = frozenset({Mark.INCOMPLETE, Mark.LATER, Mark.FAILED, Mark.BROKEN})


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule as it is configured: `silence` is how long it may fire nothing, `since` when it was added or resumed, both in seconds."""

    name: str
    command: str
    cron: str
    paused: bool = False
    silence: float = 2 * 86400.0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """What needs somebody: `about` names a schedule or an operation, `times` is how often in a row, `since` RFC 3339."""

    about: str
    what: str
    todo: str
    since: str
    times: int = 1
    firing: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One schedule: `strip` are its latest firings, oldest first."""

    plan: Plan
    health: Health
    strip: Sequence[Firing]
    trouble: Trouble | None = None

    @property
    def last(self) -> Firing | None:
        """The latest firing that has ended, however it did."""
        return next((each for each in reversed(self.strip) if mark_of(each) not in _UNTOLD), None)

    @property
    def running(self) -> bool:
        """Whether it is at work now."""
        return bool(self.strip) and mark_of(self.strip[-1]) is Mark.RUNNING


def mark_of(firing: Firing) -> Mark:
    """How it is drawn: a firing that is running has not failed."""
    if firing.state != "failed":
        return _MARKS[firing.state]
    if firing.exit in WELL:
        return Mark.DONE
    return {5: Mark.LATER, 6: Mark.INCOMPLETE, 11: Mark.INCOMPLETE}.get(firing.exit or 1, Mark.FAILED)


def judge(plan: Plan, firings: Sequence[Firing], now: float) -> Line:
    """`firings` are all that are on record, oldest first; `now` in seconds since the epoch."""
    strip = firings[-STRIP:]
    if plan.paused:
        return Line(plan, Health.PAUSED, strip)
    trouble = _failing(plan, firings) or _silent(plan, firings, now)
    if trouble is not None:
        return Line(plan, Health.NEEDS_YOU, strip, trouble)
    told = any(mark_of(each) not in _UNTOLD for each in firings)
    return Line(plan, Health.WELL if told else Health.NEW, strip)


def _failing(plan: Plan, firings: Sequence[Firing]) -> Trouble | None:
    """The row of bad firings at the end, told by the latest of them."""
    row: list[Firing] = []
    for firing in reversed(firings):
        mark = mark_of(firing)
        if mark in _BAD:
            row.append(firing)
        elif mark not in _UNTOLD:
            break
    if not row:
        return None
    last = row[0]
    return Trouble(plan.name, _what(last), _todo(plan, last), row[-1].began, len(row), last.id)


def _what(firing: Firing) -> str:
    mark = mark_of(firing)
    if mark is Mark.BROKEN:
        return "It began and never ended: it was killed, or the machine went down."
    failed = firing.amount("files_failed")
    if firing.message:
        about = f"{firing.about}: " if firing.about else ""
        return f"{about}{firing.message}"
    if mark is Mark.INCOMPLETE:
        return (
            f"{failed} files could not be done."
            if failed
            else "Not all of it was done, or not all is proven."
        )
    return f"It ended with exit code {firing.exit}."


def _todo(plan: Plan, firing: Firing) -> str:
    """A line to act on; where the error had none, what shows more."""
    if firing.hint:
        return firing.hint
    if firing.operations:
        return f"hibali history show {firing.operations[-1]}"
    return f"hibali schedule log {plan.name}"


def _silent(plan: Plan, firings: Sequence[Firing], now: float) -> Trouble | None:
    """Nothing has fired for too long."""
    last = max(plan.since, *(moment_of(each.began) or 0.0 for each in firings[-1:]), 0.0)
    if not last or now - last <= plan.silence:
        return None
    since = firings[-1].began if firings else ""
    return Trouble(
        plan.name,
        f"Nothing has fired for {time_words(now - last)}: is the machine on, and cron?",
        f"hibali schedule show {plan.name}",
        since,
    )


_UNTOLD = frozenset({Mark.SKIPPED, Mark.RUNNING})
