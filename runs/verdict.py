"""What a scheduler's word, a job's own exit record and accounting amount to; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hibali.errors import HibaliError
from hibali.strict_json import read_json
from hibali.text import printable
from runs.required import ID
from runs.run import State
from runs.scheduler import Phase, Status

ASKED = "cancel"  # in place of a signal: none came, but somebody had wished the end before the tool ended
_MOST_NAMED = 5
_TIMES = re.compile(r"(\d{1,9})m(\d{1,2}(?:[.,]\d{1,9})?)s (\d{1,9})m(\d{1,2}(?:[.,]\d{1,9})?)s ?")


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """What the job script wrote at its end; `cpu_seconds` are those of its children.

    `missing` are the ids of required outputs that were not there after a tool had ended with 0.
    """

    code: int
    signal: str
    host: str
    job: str
    started: str
    ended: str
    cpu_seconds: float | None = None
    missing: tuple[str, ...] = ()

    @property
    def is_success(self) -> bool:
        """Whether the tool ended with 0 and left its required outputs."""
        return self.code == 0 and not self.missing


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of one run now."""

    state: State
    native: str = ""
    reason: str = ""
    record: ExitRecord | None = None
    accounted: Status | None = None

    def to_fields(self) -> dict[str, Any]:
        """The record of kind `seen` in the ledger."""
        fields: dict[str, Any] = {"state": self.state, "native": self.native, "reason": self.reason}
        if self.record is not None:
            fields |= {
                "exit_code": self.record.code,
                "host": self.record.host,
                "started": self.record.started,
                "ended": self.record.ended,
                "cpu_seconds": self.record.cpu_seconds,
            }
            if self.record.missing:
                fields["missing"] = list(self.record.missing)
        if self.accounted is not None:
            used = {"cpu_seconds": self.accounted.cpu_seconds, "memory_bytes": self.accounted.memory_bytes}
            fields |= {name: value for name, value in used.items() if value is not None}
        return fields


def judge(
    status: Status,
    record: ExitRecord | None,
    accounted: Status | None,
    *,
    cancelled: bool = False,
    marked: bool = False,
    told: bool | None = None,
    again: bool = False,
) -> Seen:
    """The state of a run, from its scheduler's word, its own exit record, and accounting; pure.

    Only the exit record can make a run SUCCEEDED, and only of a tool that nobody told to stop: one whose child was
    killed before it may go on without it and end with 0. Without a record, an end is FAILED or CANCELLED where the
    scheduler says why it ended the job, else LOST. `again` says that the job was started once more, and
    did nothing.

    `cancelled` is our wish to end it, `marked` that the job could see it at the site before the scheduler heard of it, `told`
    that the scheduler took it; where nobody knows, it did.
    """
    told = cancelled if told is None else told
    best = accounted if accounted is not None and _knows_more(accounted, status) else status
    seen = _judge(status, best, record, cancelled=cancelled, marked=marked, told=told, again=again)
    return seen if accounted is None else replace(seen, accounted=accounted)


def _knows_more(accounted: Status, status: Status) -> bool:
    """Accounting lags: of a job that the queue knows to be over it may still say that it waits or runs."""
    if status.phase.queued or accounted.phase is Phase.GONE:
        return False
    if status.phase is Phase.CANCELLED and accounted.phase is Phase.ENDED:
        return False  # somebody ended the job, whatever its tool made of that
    return status.phase is Phase.GONE or not accounted.phase.queued


def _judge(
    status: Status,
    best: Status,
    record: ExitRecord | None,
    *,
    cancelled: bool,
    marked: bool,
    told: bool,
    again: bool,
) -> Seen:
    if record is not None and record.signal in {"", ASKED}:
        return _judge_undisturbed(best, record, cancelled=cancelled, marked=marked, told=told)
    if record is not None:
        return _judge_stopped(best, record, cancelled=cancelled, again=again)
    if status.phase is Phase.WAITING:
        return Seen(State.WAITING, status.native, status.reason)
    if status.phase in {Phase.RUNNING, Phase.ELSEWHERE}:
        return Seen(State.RUNNING, status.native, status.reason)
    if best.phase is Phase.CANCELLED or (told and best.phase is Phase.GONE):
        return Seen(State.CANCELLED, best.native, best.reason)
    if best.phase is Phase.KILLED:
        return Seen(State.FAILED, best.native, f"ended by the scheduler: {best.native}")
    if best.phase is Phase.WAITING or best.phase is Phase.RUNNING:
        # accounting lags behind a queue that has forgotten the job
        return Seen(
            State.LOST, best.native, "the queue does not know the job, accounting has not seen its end"
        )
    return Seen(State.LOST, best.native, best.reason or "the job is over and left no exit record")


def _judge_undisturbed(
    best: Status, record: ExitRecord, *, cancelled: bool, marked: bool, told: bool
) -> Seen:
    """A record of which the job's own script saw no signal: the tool ended, but maybe because of what a signal did to its child."""
    if record.signal == ASKED:
        if best.phase is Phase.RUNNING:
            return Seen(State.RUNNING, best.native, best.reason)  # whether it was cancelled is not said yet
        ended = best.phase is Phase.CANCELLED or (told and best.phase not in {Phase.ENDED, Phase.KILLED})
    elif marked:
        ended = False  # the tool had ended before the scheduler heard of the wish
    else:
        failed = cancelled and not record.is_success and best.phase is not Phase.KILLED
        ended = best.phase is Phase.CANCELLED or failed
    if ended:
        return Seen(State.CANCELLED, best.native, best.reason, record)
    if record.is_success:
        return Seen(State.SUCCEEDED, best.native, "", record)
    if record.missing and best.phase is not Phase.KILLED:
        return Seen(State.FAILED, best.native, missing_words(record.missing), record)
    return Seen(State.FAILED, best.native, _why(best), record)


def _judge_stopped(best: Status, record: ExitRecord, *, cancelled: bool, again: bool) -> Seen:
    """A record of a tool that was told to stop by a signal."""
    if best.phase is Phase.CANCELLED or (cancelled and best.phase is not Phase.KILLED):
        return Seen(State.CANCELLED, best.native, best.reason, record)
    if best.phase is Phase.RUNNING:
        return Seen(State.RUNNING, best.native, best.reason)  # why it was stopped is not said yet
    if again or best.phase in {Phase.WAITING, Phase.BROKEN}:
        return Seen(State.LOST, best.native, "the scheduler stopped the tool and put the job back", record)
    reason = _why(best)
    if record.code == 0:
        reason = reason or f"it was told to stop ({record.signal}) and ended with 0, which proves nothing"
    elif record.signal:
        reason = reason or f"it was told to stop ({record.signal})"
    return Seen(State.FAILED, best.native, reason, record)


def missing_words(missing: Sequence[str]) -> str:
    """Name the required outputs that a tool did not leave, the first few of many."""
    if len(missing) == 1:
        return f"the required output {missing[0]} is missing"
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return f"the required outputs {', '.join(missing[:_MOST_NAMED])}{more} are missing"


def _why(best: Status) -> str:
    return f"ended by the scheduler: {best.native}" if best.phase is Phase.KILLED else best.reason


def read_exit_record(content: bytes | None, run: str) -> ExitRecord | None:
    """`exit.json` as the job script wrote it; None where there is none, or none that can be this run's."""
    if content is None:
        return None
    try:
        found = read_json(content, "exit.json")
        if found["run"] != run or type(found["code"]) is not int:
            return None
        signal, host, job, started, ended = (
            printable(str(found[name]))[:200] for name in ("signal", "host", "job", "started", "ended")
        )
        cpu_seconds = _read_times(found.get("times"))
        missing = tuple(str(each) for each in found.get("missing", ()))
        if not all(ID.fullmatch(each) for each in missing):
            return None
        return ExitRecord(found["code"], signal, host, job, started, ended, cpu_seconds, missing)
    except (HibaliError, LookupError, TypeError):
        return None


def _read_times(text: object) -> float | None:
    """Seconds of user and system time together, of what `times` of a POSIX shell prints: `0m1.230s 0m0.400s`."""
    found = _TIMES.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    minutes, seconds, more_minutes, more_seconds = (float(part.replace(",", ".")) for part in found.groups())
    return round((minutes + more_minutes) * 60 + seconds + more_seconds, 3)
