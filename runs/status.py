"""Resolve the state of a run from the scheduler, its exit record and accounting; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from hibali.documents import read_json
from hibali.errors import HibaliError
from hibali.text import printable
from runs.model import Run, State
from runs.schedulers.base import Phase, Status
from runs.script import ID

CANCEL_REQUESTED = (
    "cancel"  # in place of a signal: none came, but somebody had wished the end before the tool ended
)
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
class Observation:
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


def resolve_status(
    status: Status,
    record: ExitRecord | None,
    accounted: Status | None,
    *,
    cancelled: bool = False,
    marked: bool = False,
    told: bool | None = None,
    again: bool = False,
) -> Observation:
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
    seen = _resolve(status, best, record, cancelled=cancelled, marked=marked, told=told, again=again)
    return seen if accounted is None else replace(seen, accounted=accounted)


def _knows_more(accounted: Status, status: Status) -> bool:
    """Accounting lags: of a job that the queue knows to be over it may still say that it waits or runs."""
    if status.phase.queued or accounted.phase is Phase.GONE:
        return False
    if status.phase is Phase.CANCELLED and accounted.phase is Phase.ENDED:
        return False  # somebody ended the job, whatever its tool made of that
    return status.phase is Phase.GONE or not accounted.phase.queued


def _resolve(
    status: Status,
    best: Status,
    record: ExitRecord | None,
    *,
    cancelled: bool,
    marked: bool,
    told: bool,
    again: bool,
) -> Observation:
    if record is not None and record.signal in {"", CANCEL_REQUESTED}:
        return _resolve_unsignalled(best, record, cancelled=cancelled, marked=marked, told=told)
    if record is not None:
        return _resolve_signalled(best, record, cancelled=cancelled, again=again)
    if status.phase is Phase.WAITING:
        return Observation(State.WAITING, status.native, status.reason)
    if status.phase in {Phase.RUNNING, Phase.ELSEWHERE}:
        return Observation(State.RUNNING, status.native, status.reason)
    if best.phase is Phase.CANCELLED or (told and best.phase is Phase.GONE):
        return Observation(State.CANCELLED, best.native, best.reason)
    if best.phase is Phase.KILLED:
        return Observation(State.FAILED, best.native, f"ended by the scheduler: {best.native}")
    if best.phase is Phase.WAITING or best.phase is Phase.RUNNING:
        # accounting lags behind a queue that has forgotten the job
        return Observation(
            State.LOST, best.native, "the queue does not know the job, and accounting does not know its end"
        )
    return Observation(State.LOST, best.native, best.reason or "the job ended without an exit record")


def _resolve_unsignalled(
    best: Status, record: ExitRecord, *, cancelled: bool, marked: bool, told: bool
) -> Observation:
    """A record of which the job's own script saw no signal: the tool ended, but maybe because of what a signal did to its child."""
    if record.signal == CANCEL_REQUESTED:
        if best.phase is Phase.RUNNING:
            return Observation(
                State.RUNNING, best.native, best.reason
            )  # whether it was cancelled is not said yet
        ended = best.phase is Phase.CANCELLED or (told and best.phase not in {Phase.ENDED, Phase.KILLED})
    elif marked:
        ended = False  # the tool had ended before the scheduler heard of the wish
    else:
        failed = cancelled and not record.is_success and best.phase is not Phase.KILLED
        ended = best.phase is Phase.CANCELLED or failed
    if ended:
        return Observation(State.CANCELLED, best.native, best.reason, record)
    if record.is_success:
        return Observation(State.SUCCEEDED, best.native, "", record)
    if record.missing and best.phase is not Phase.KILLED:
        return Observation(State.FAILED, best.native, format_missing_outputs(record.missing), record)
    return Observation(State.FAILED, best.native, _why(best), record)


def _resolve_signalled(best: Status, record: ExitRecord, *, cancelled: bool, again: bool) -> Observation:
    """A record of a tool that was told to stop by a signal."""
    if best.phase is Phase.CANCELLED or (cancelled and best.phase is not Phase.KILLED):
        return Observation(State.CANCELLED, best.native, best.reason, record)
    if best.phase is Phase.RUNNING:
        return Observation(State.RUNNING, best.native, best.reason)  # why it was stopped is not said yet
    if again or best.phase in {Phase.WAITING, Phase.BROKEN}:
        return Observation(
            State.LOST, best.native, "the scheduler stopped the tool and put the job back", record
        )
    reason = _why(best)
    if record.code == 0:
        reason = reason or f"a signal stopped it ({record.signal}) and ended with 0, which proves nothing"
    elif record.signal:
        reason = reason or f"a signal stopped it ({record.signal})"
    return Observation(State.FAILED, best.native, reason, record)


def format_missing_outputs(missing: Sequence[str]) -> str:
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


SKEW_SECONDS = 3600.0  # by how much another machine's clock may be wrong


@dataclass(frozen=True, slots=True)
class Span:
    """A time in one state; seconds since the epoch, `until` None where it lasts."""

    state: State
    since: float
    until: float | None = None


def timeline_of(records: Iterable[Mapping[str, Any]]) -> list[Span]:
    """The states that a run went through, oldest first, without a gap; the last one lasts.

    Where the job itself says when it began and ended, that counts, as far as its clock agrees with ours.
    """
    spans: list[Span] = []
    for record in records:
        state, at = _state_of(record), read_moment(record.get("at"))
        if state is None or at is None or (spans and not _follows(spans[-1].state, state)):
            continue
        told = _times_of_job(record, spans[0].since, at) if state.ended and spans else None
        if told is not None:
            _run_from(spans, told[0])
            at = told[1]
        _enter(spans, state, at)
    return spans


def run_timeline(run: Run, records: Iterable[Mapping[str, Any]]) -> list[Span]:
    """The same of a run that may be a sweep: that is submitted with its first job, runs from its first task on, and ends with its last."""
    if run.sweep is None:
        return timeline_of(records)
    told = list(_as_one_job(records))
    spans = timeline_of(told)
    if spans and run.state.ended:
        _enter(spans, run.state, read_moment(told[-1].get("at")) or spans[-1].since)
    return spans


def _as_one_job(records: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """What is noted of tasks, in the words for a run that has no others; records of other kinds are left out."""
    runs = False
    for record in records:
        kind = record.get("kind")
        if kind in {"prepared", "staged"}:
            yield record
        elif kind == "chunk":
            yield {**record, "kind": "submitted" if not runs else kind}
        elif kind == "tasks":
            states = {State(change["state"]) for change in record["changes"]}
            runs = runs or State.RUNNING in states or any(state.ended for state in states)
            yield {"kind": "seen", "at": record["at"], "state": State.RUNNING if runs else State.WAITING}


def _times_of_job(record: Mapping[str, Any], since: float, at: float) -> tuple[float, float] | None:
    """When the tool began and ended; None where nobody says so, or what cannot be."""
    began, ended = read_moment(record.get("started")), read_moment(record.get("ended"))
    if began is None or ended is None:
        return None
    return (began, ended) if since - SKEW_SECONDS <= began <= ended <= at + SKEW_SECONDS else None


def _follows(before: State, state: State) -> bool:
    """Whether it is news: an end stays, but for one that nobody knew."""
    return state is not before and not before.final and (state.ended or not before.ended)


def _run_from(spans: list[Span], began: float) -> None:
    """Between two looks nobody saw when the job began: it says so itself."""
    while spans and spans[-1].state in {State.RUNNING, State.LOST}:
        spans.pop()
    while len(spans) > 1 and spans[-1].since > began and spans[-1].state is State.WAITING:
        spans.pop()
    _enter(spans, State.RUNNING, began)


def _enter(spans: list[Span], state: State, at: float) -> None:
    if spans:
        before = spans[-1]
        at = max(at, before.since)  # clocks differ between machines
        spans[-1] = Span(before.state, before.since, at)
    spans.append(Span(state, at))


def _state_of(record: Mapping[str, Any]) -> State | None:
    match record.get("kind"):
        case "prepared":
            return State.PREPARED
        case "staged":
            return State.STAGED
        case "submitted":
            return State.SUBMITTED
        case "seen":
            word = record.get("state")
            return State(word) if word in set(State) else None
        case _:
            return None


def read_moment(text: object) -> float | None:
    """Seconds since the epoch of a time in RFC 3339, UTC; None for what is none."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
        return None if found.tzinfo is None else found.timestamp()
    except (ValueError, OverflowError):
        return None
