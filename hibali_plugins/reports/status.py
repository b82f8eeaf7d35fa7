"""Compute the status report on schedules, data, sites and runs; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from hibali.amounts import format_duration, format_size
from hibali.ledger import seconds_of
from hibali.text import counted
from hibali.unreadable import Unreadable
from hibali_plugins.schedules.records import SUCCESS_CODES, Trigger
from transfers.history.operations import Operation, Result, UnverifiedFiles

STRIP = 30  # firings that are shown of each schedule


class Health(StrEnum):
    """The health of a schedule."""

    WELL = "well"
    NEEDS_YOU = "needs you"
    PAUSED = "paused"
    NEW = "not fired yet"


class Mark(StrEnum):
    """The symbol of one firing."""

    DONE = "done"
    INCOMPLETE = "incomplete"
    LATER = "to be tried again"
    FAILED = "failed"
    BROKEN = "broken off"
    SKIPPED = "skipped"
    RUNNING = "running"


_MARKS = {"done": Mark.DONE, "broken": Mark.BROKEN, "skipped": Mark.SKIPPED, "running": Mark.RUNNING}
_BAD_MARKS = frozenset({Mark.INCOMPLETE, Mark.LATER, Mark.FAILED, Mark.BROKEN})


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """The configuration of a schedule.

    `silence` is the longest time without a firing, `since` when it was added or resumed, both in seconds.
    """

    name: str
    command: str
    cron: str
    paused: bool = False
    silence: float = 2 * 86400.0
    since: float = 0.0

    @property
    def operation(self) -> str:
        """The word of the command after `hibali`."""
        return (*self.command.split(), "", "")[1]


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem that needs attention.

    `about` names a schedule or an operation, `times` counts consecutive failures, `since` is RFC 3339.
    """

    about: str
    what: str
    todo: str
    since: str
    times: int = 1
    firing: str | None = None


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """The row of a schedule: `strip` are its latest firings, oldest first."""

    schedule: ScheduleInfo
    health: Health
    strip: Sequence[Trigger]
    trouble: Trouble | None = None

    @property
    def last(self) -> Trigger | None:
        """The latest firing that has ended, with any result."""
        return next((each for each in reversed(self.strip) if mark_of(each) not in _UNTOLD), None)

    @property
    def running(self) -> bool:
        """Whether a firing is running now."""
        return bool(self.strip) and mark_of(self.strip[-1]) is Mark.RUNNING


def mark_of(firing: Trigger) -> Mark:
    """Return the symbol of a firing: a running one has not failed."""
    if firing.state != "failed":
        return _MARKS[firing.state]
    if firing.exit in SUCCESS_CODES:
        return Mark.DONE
    return {5: Mark.LATER, 6: Mark.INCOMPLETE, 11: Mark.INCOMPLETE}.get(firing.exit or 1, Mark.FAILED)


def evaluate(schedule: ScheduleInfo, firings: Sequence[Trigger], now: float) -> ScheduleRow:
    """Evaluate a schedule from all recorded firings, oldest first; `now` is in seconds since the epoch."""
    strip = firings[-STRIP:]
    if schedule.paused:
        return ScheduleRow(schedule, Health.PAUSED, strip)
    trouble = _failing(schedule, firings) or _silent(schedule, firings, now)
    if trouble is not None:
        return ScheduleRow(schedule, Health.NEEDS_YOU, strip, trouble)
    has_result = any(mark_of(each) not in _UNTOLD for each in firings)
    return ScheduleRow(schedule, Health.WELL if has_result else Health.NEW, strip)


def _failing(schedule: ScheduleInfo, firings: Sequence[Trigger]) -> Trouble | None:
    """Return the failures in a row at the end, described by the latest one."""
    row: list[Trigger] = []
    for firing in reversed(firings):
        mark = mark_of(firing)
        if mark in _BAD_MARKS:
            row.append(firing)
        elif mark not in _UNTOLD:
            break
    if not row:
        return None
    last = row[0]
    return Trouble(
        schedule.name,
        _describe_failure(schedule.operation, last),
        _todo(schedule, last),
        row[-1].began,
        len(row),
        last.id,
    )


def _describe_incomplete(operation: str, failed: int) -> str:
    """Describe the failures of a command in the words of its operation."""
    if operation == "verify":
        verb = "differs or is missing" if failed == 1 else "differ or are missing"
        return f"{counted(failed, 'file')} {verb}." if failed else "Some files were not compared."
    if operation in {"rm", "drop"}:
        return (
            f"{counted(failed, 'file')} could not be removed." if failed else "Some files were not removed."
        )
    return (
        f"{counted(failed, 'file')} could not be transferred."
        if failed
        else "Some files were not transferred or not verified."
    )


def _describe_failure(operation: str, firing: Trigger) -> str:
    mark = mark_of(firing)
    if mark is Mark.BROKEN:
        return "It started but never ended: it was killed, or the machine stopped."
    failed = firing.amount("files_failed")
    if firing.message:
        about = f"{firing.about}: " if firing.about else ""
        return f"{about}{firing.message}"
    if mark is Mark.INCOMPLETE:
        return _describe_incomplete(operation, failed)
    return f"It ended with exit code {firing.exit}."


def _todo(schedule: ScheduleInfo, firing: Trigger) -> str:
    """Return the error's hint, or a command that shows more."""
    if firing.hint:
        return firing.hint
    if firing.operations:
        return f"hibali history show {firing.operations[-1]}"
    return f"hibali schedule log {schedule.name}"


def _silent(schedule: ScheduleInfo, firings: Sequence[Trigger], now: float) -> Trouble | None:
    """Return the problem that a schedule has not fired for too long."""
    last = max(schedule.since, *(seconds_of(each.began) or 0.0 for each in firings[-1:]), 0.0)
    if not last or now - last <= schedule.silence:
        return None
    since = firings[-1].began if firings else ""
    return Trouble(
        schedule.name,
        f"Nothing has fired for {format_duration(now - last)}: check that the machine and its cron are running.",
        f"hibali schedule show {schedule.name}",
        since,
    )


_UNTOLD = frozenset({Mark.SKIPPED, Mark.RUNNING})


DAYS = 60
_RECENT = 7 * 86400.0  # seconds: older failed commands are not reported
_MOST_FAILED_COMMANDS = 10
_BAD_RESULTS = frozenset({Result.INCOMPLETE, Result.FAILED, Result.LATER, Result.REFUSED, Result.UNFINISHED})


@dataclass(slots=True)
class Day:
    """The totals of one day in UTC: bytes, seconds of transfer, and failed operations."""

    day: str
    bytes: int = 0
    files: int = 0
    seconds: float = 0.0
    operations: int = 0
    bad: int = 0

    @property
    def rate(self) -> float:
        """The transfer rate in bytes per second."""
        return self.bytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Expiry:
    """Data that a site will purge, or a login that expires; `when` is RFC 3339."""

    what: str
    about: str
    when: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """The status report. `now` is in seconds since the epoch; `usage` are the fields of `site-usage` lines.

    `unreadable` has the reason for each file of the ledger that could not be read.
    """

    now: float
    lines: Sequence[ScheduleRow] = ()
    days: Sequence[Day] = ()
    failed_commands: Sequence[Trouble] = ()
    unproven: Sequence[UnverifiedFiles] = ()
    expiries: Sequence[Expiry] = ()
    usage: Sequence[Mapping[str, Any]] = ()
    runs: Mapping[str, int] = field(default_factory=dict)
    operations: int = 0
    unreadable: Unreadable = field(default_factory=dict)

    @property
    def needing_attention(self) -> list[ScheduleRow]:
        """The schedules that need attention."""
        return [line for line in self.lines if line.health is Health.NEEDS_YOU]

    @property
    def troubles(self) -> list[Trouble]:
        """The problems: unreadable files, which hide others, and those of schedules come first."""
        return [
            *(Trouble(path, each.reason, each.hint, "") for path, each in self.unreadable.items()),
            *(line.trouble for line in self.needing_attention if line.trouble is not None),
            *self.failed_commands,
        ]


def headline(overview: Overview) -> str:
    """Return one sentence that summarizes the report."""
    count, bad = len(overview.lines), len(overview.needing_attention)
    if overview.unreadable:
        return f"{counted(len(overview.unreadable), 'file')} of the ledger cannot be read"
    if not count:
        return "No schedules yet"
    if bad:
        return (
            f"{bad} of {count} schedules {'needs' if bad == 1 else 'need'} attention"
            if count > 1
            else "The only schedule needs attention"
        )
    paused = sum(line.health is Health.PAUSED for line in overview.lines)
    well = count - paused
    if not well:
        return "Every schedule is paused"
    if paused:
        return (
            f"{well} of {count} schedules are well, {paused} paused"
            if well > 1
            else f"One schedule is well, {paused} paused"
        )
    return f"All {count} schedules are well" if count > 1 else "The one schedule is well"


def summary(overview: Overview) -> str:
    """Return the sentences below the headline: recent transfers, and their verification."""
    last = overview.days[-1] if overview.days else None
    sentences = []
    if last is not None:
        sentences.append(
            f"Today {counted(last.operations, 'operation')} moved {counted(last.files, 'file')}, {format_size(last.bytes)}."
            if last.operations
            else "Nothing has moved today."
        )
    files = sum(each.files for each in overview.unproven)
    if files:
        sentences.append(
            f"{counted(files, 'moved file')} {'is' if files == 1 else 'are'} not verified by content."
        )
    elif overview.operations:
        sentences.append("All moved files are verified by content.")
    if overview.expiries:
        sentences.append(f"{counted(len(overview.expiries), 'item')} will expire or be purged soon.")
    return " ".join(sentences)


def by_day(operations: Iterable[Operation], now: float, days: int = DAYS) -> list[Day]:
    """Return every day up to today, including days without transfers."""
    today = datetime.fromtimestamp(now, UTC)
    found = {f"{today - timedelta(days=back):%Y-%m-%d}": Day("") for back in reversed(range(days))}
    for name, day in found.items():
        day.day = name
    for each in operations:
        on = found.get(each.began[:10])
        if on is not None and not each.was_mistyped:
            on.operations += 1
            on.bad += each.result() in _BAD_RESULTS
            on.bytes += each.number("bytes_moved")
            on.files += each.number("files_moved")
            on.seconds += each.seconds if each.number("bytes_moved") else 0.0
    return list(found.values())


def failed_commands(operations: Sequence[Operation], now: float) -> list[Trouble]:
    """List the manual commands of the last week that failed and did not succeed since, the latest first."""
    seen: set[tuple[str, str, str]] = set()
    found: list[Trouble] = []
    for each in reversed(operations):
        line = (each.operation, each.source, each.target)
        if now - each.moment > _RECENT or len(found) == _MOST_FAILED_COMMANDS:
            break
        if (
            each.schedule is not None
            or each.was_mistyped
            or line in seen
            or each.result() is Result.UNDER_WAY
        ):
            continue
        seen.add(line)
        if each.result() in _BAD_RESULTS:
            found.append(_trouble(each))
    return found


def _trouble(each: Operation) -> Trouble:
    stopped = each.stopped or {}
    result = each.result()
    if stopped:
        what = f"{stopped.get('about')}: {stopped.get('message')}"
    elif result is Result.UNFINISHED:
        what = "It started but never ended: it was killed, or the machine stopped."
    else:
        failed = each.number("files_failed")
        what = _describe_incomplete(each.operation, failed) if failed else f"It is {result}."
    about = (
        f"{each.operation} {each.source} {each.target}"
        if each.source != each.target
        else f"{each.operation} {each.target}"
    )
    return Trouble(about, what, str(stopped.get("hint") or f"hibali history show {each.id}"), each.began)


def to_record(overview: Overview) -> dict[str, Any]:
    """Return the fields of the JSON line of kind `report`."""
    return {
        "at": f"{datetime.fromtimestamp(overview.now, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "headline": headline(overview),
        "schedules": [_line_record(line) for line in overview.lines],
        "troubles": [asdict(each) for each in overview.troubles],
        "days": [{**asdict(day), "bytes_per_second": round(day.rate)} for day in overview.days],
        "unproven": [asdict(each) for each in overview.unproven],
        "fading": [asdict(each) for each in overview.expiries],
        "sites": [dict(each) for each in overview.usage],
        "runs": dict(overview.runs),
        "operations": overview.operations,
    }


def _line_record(line: ScheduleRow) -> dict[str, Any]:
    counts = Counter(str(mark_of(each)) for each in line.strip)
    last = line.last
    return {
        "name": line.schedule.name,
        "command": line.schedule.command,
        "cron": line.schedule.cron,
        "health": str(line.health),
        "running": line.running,
        "last": None
        if last is None
        else {"began": last.began, "exit": last.exit, "mark": str(mark_of(last))},
        "firings": [{"id": each.id, "began": each.began, "mark": str(mark_of(each))} for each in line.strip],
        "counts": dict(counts),
    }
