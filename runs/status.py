"""Resolve the state of a run from the scheduler, its exit record and accounting, and say why it failed; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hibali.documents import read_json
from hibali.errors import HibaliError, OutputsMissingError, RunFailedError, TryLaterError
from hibali.ledger import seconds_of
from hibali.text import counted, printable
from runs.model import OUTPUT_ID, Run, State
from runs.schedulers.base import TIME_LIMIT, Phase, Status

# in place of a signal: cancellation was requested before the tool ended, and no signal arrived
CANCEL_REQUESTED = "cancel"
NOT_STARTED = "not started"  # the beginning of the reason of a run whose tool was not started
_MOST_NAMED = 5
_TIMES = re.compile(r"(\d{1,9})m(\d{1,2}(?:[.,]\d{1,9})?)s (\d{1,9})m(\d{1,2}(?:[.,]\d{1,9})?)s ?")


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """The exit record that the job script writes at its end; `cpu_seconds` are those of its children.

    `missing` are the ids of required outputs that did not exist after the tool had exited with 0.
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
        """True if the tool exited with 0 and created its required outputs."""
        return self.code == 0 and not self.missing


@dataclass(frozen=True, slots=True)
class Observation:
    """The observed state of one run."""

    state: State
    native: str = ""
    reason: str = ""
    record: ExitRecord | None = None
    accounted: Status | None = None

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of the ledger's record of kind `seen`."""
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
    cancel_marked: bool = False,
    cancel_accepted: bool | None = None,
    restarted: bool = False,
) -> Observation:
    """Resolve the state of a run from the scheduler's status, the exit record, and accounting.

    Only an exit record can make a run SUCCEEDED, and only if no signal stopped the tool: a tool whose child was killed may continue
    without it and exit with 0. Without a record, an end is FAILED or CANCELLED if the scheduler reports why the job ended, else LOST.

    Args:
        status: The status in the queue.
        record: The exit record, None if there is none.
        accounted: The status in the accounting, None if it was not queried.
        cancelled: Cancellation was requested.
        cancel_marked: The job could see the request at the site before the scheduler did.
        cancel_accepted: The scheduler accepted the request; None if unknown, which counts as accepted.
        restarted: The job was started a second time and did nothing.
    """
    cancel_accepted = cancelled if cancel_accepted is None else cancel_accepted
    best = accounted if accounted is not None and _knows_more(accounted, status) else status
    seen = _resolve(
        status,
        best,
        record,
        cancelled=cancelled,
        cancel_marked=cancel_marked,
        cancel_accepted=cancel_accepted,
        restarted=restarted,
    )
    return seen if accounted is None else replace(seen, accounted=accounted)


def _knows_more(accounted: Status, status: Status) -> bool:
    """Return whether accounting is newer than the queue: it lags, and may report a finished job as waiting or running."""
    if status.phase.queued or accounted.phase is Phase.UNKNOWN:
        return False
    if status.phase is Phase.CANCELLED and accounted.phase is Phase.ENDED:
        return False  # the job was cancelled, regardless of its exit code
    return status.phase is Phase.UNKNOWN or not accounted.phase.queued


def _resolve(
    status: Status,
    best: Status,
    record: ExitRecord | None,
    *,
    cancelled: bool,
    cancel_marked: bool,
    cancel_accepted: bool,
    restarted: bool,
) -> Observation:
    if record is not None and record.signal in {"", CANCEL_REQUESTED}:
        # The queue reports a cancelled job: a tool that exited with 0 may have lost a child, regardless of the accounting record.
        known = status if record.is_success and status.phase is Phase.CANCELLED else best
        return _resolve_unsignalled(
            known, record, cancelled=cancelled, cancel_marked=cancel_marked, cancel_accepted=cancel_accepted
        )
    if record is not None:
        return _resolve_signalled(best, record, cancelled=cancelled, restarted=restarted)
    if status.phase is Phase.WAITING:
        return Observation(State.WAITING, status.native, status.reason)
    if status.phase in {Phase.RUNNING, Phase.ELSEWHERE}:
        return Observation(State.RUNNING, status.native, status.reason)
    if best.phase is Phase.CANCELLED or (cancel_accepted and best.phase is Phase.UNKNOWN):
        return Observation(State.CANCELLED, best.native, best.reason)
    if best.phase is Phase.KILLED:
        return Observation(State.FAILED, best.native, _why(best))
    if best.phase is Phase.BROKEN:
        return Observation(State.LOST, best.native, _why_broken(best))
    if best.phase is Phase.WAITING or best.phase is Phase.RUNNING:
        # accounting lags behind the queue, which no longer has the job
        return Observation(
            State.LOST, best.native, "the queue does not know the job, and accounting does not know its end"
        )
    return Observation(State.LOST, best.native, best.reason or "the job ended without an exit record")


def _resolve_unsignalled(
    best: Status, record: ExitRecord, *, cancelled: bool, cancel_marked: bool, cancel_accepted: bool
) -> Observation:
    """Resolve with a record of a tool that saw no signal; a signal may still have killed its child."""
    if record.signal == CANCEL_REQUESTED:
        if best.phase is Phase.RUNNING:
            # the scheduler has not reported a cancellation yet
            return Observation(State.RUNNING, best.native, best.reason)
        ended = best.phase is Phase.CANCELLED or (
            cancel_accepted and best.phase not in {Phase.ENDED, Phase.KILLED}
        )
    elif cancel_marked:
        ended = False  # the tool had ended before the scheduler got the request
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


def _resolve_signalled(best: Status, record: ExitRecord, *, cancelled: bool, restarted: bool) -> Observation:
    """Resolve with a record of a tool that a signal stopped."""
    if best.phase is Phase.CANCELLED or (cancelled and best.phase is not Phase.KILLED):
        return Observation(State.CANCELLED, best.native, best.reason, record)
    if best.phase is Phase.RUNNING:
        # the scheduler has not reported the reason yet
        return Observation(State.RUNNING, best.native, best.reason)
    if best.phase is Phase.BROKEN:
        return Observation(State.LOST, best.native, _why_broken(best), record)
    if restarted or best.phase is Phase.WAITING:
        # the job is followed, and does nothing when it starts again
        state = State.LOST if restarted else State.WAITING
        more = f" ({best.reason})" if best.reason else ""
        return Observation(
            state,
            best.native,
            f"the scheduler stopped the tool and requeued the job{more}",
            record if restarted else None,
        )
    reason = _why(best)
    if record.code == 0:
        reason = (
            reason
            or f"a signal ({record.signal}) stopped the tool, so its exit code 0 does not prove success"
        )
    elif record.signal:
        reason = reason or f"a signal ({record.signal}) stopped the tool"
    return Observation(State.FAILED, best.native, reason, record)


def format_missing_outputs(missing: Sequence[str]) -> str:
    """Name the missing required outputs, the first few of many."""
    if len(missing) == 1:
        return f"the required output {missing[0]} is missing"
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return f"the required outputs {', '.join(missing[:_MOST_NAMED])}{more} are missing"


def _why(best: Status) -> str:
    if best.phase is not Phase.KILLED:
        return best.reason
    return ", ".join(["ended by the scheduler: " + best.native, *filter(None, [best.reason])])


def _why_broken(best: Status) -> str:
    return ", ".join([f"the scheduler ended the job: {best.native}", *filter(None, [best.reason])])


def read_exit_record(content: bytes | None, run: str) -> ExitRecord | None:
    """Read `exit.json` of the job script; None if it does not exist or cannot be of this run."""
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
        if not all(OUTPUT_ID.fullmatch(each) for each in missing):
            return None
        return ExitRecord(found["code"], signal, host, job, started, ended, cpu_seconds, missing)
    except (HibaliError, LookupError, TypeError):
        return None


def _read_times(text: object) -> float | None:
    """Return the user and system time in seconds from the output of `times` in a POSIX shell: `0m1.230s 0m0.400s`."""
    found = _TIMES.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    minutes, seconds, more_minutes, more_seconds = (float(part.replace(",", ".")) for part in found.groups())
    return round((minutes + more_minutes) * 60 + seconds + more_seconds, 3)


SKEW_SECONDS = 3600.0  # by how much another machine's clock may be wrong


@dataclass(frozen=True, slots=True)
class Span:
    """A time in one state; seconds since the epoch, `until` None while it lasts."""

    state: State
    since: float
    until: float | None = None


def timeline_of(records: Iterable[Mapping[str, Any]]) -> list[Span]:
    """Return the states of a run, oldest first, without a gap; the last one lasts.

    The times that the job itself reports are used, if its clock agrees with the local one.
    """
    spans: list[Span] = []
    for record in records:
        state, at = _state_of(record), seconds_of(record.get("at"))
        if state is None or at is None or (spans and not _follows(spans[-1].state, state)):
            continue
        reported_times = _times_of_job(record, spans[0].since, at) if state.ended and spans else None
        if reported_times is not None:
            _run_from(spans, reported_times[0])
            at = reported_times[1]
        _enter(spans, state, at)
    return spans


def run_timeline(run: Run, records: Iterable[Mapping[str, Any]]) -> list[Span]:
    """Return the timeline of a run or a sweep: a sweep is submitted with its first job, runs from its first task on, and ends with its last."""
    if run.sweep is None:
        return timeline_of(records)
    job_records = list(_as_one_job(records))
    spans = timeline_of(job_records)
    if spans and run.state.ended:
        _enter(spans, run.state, seconds_of(job_records[-1].get("at")) or spans[-1].since)
    return spans


def _as_one_job(records: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Yield the records of tasks as those of a single run, without records of other kinds."""
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
    """Return when the tool began and ended; None if that is not reported or impossible."""
    began, ended = seconds_of(record.get("started")), seconds_of(record.get("ended"))
    if began is None or ended is None:
        return None
    return (began, ended) if since - SKEW_SECONDS <= began <= ended <= at + SKEW_SECONDS else None


def _follows(before: State, state: State) -> bool:
    """Return whether a state changes the timeline: a known end stays, and LOST may be replaced."""
    return state is not before and not before.final and (state.ended or not before.ended)


def _run_from(spans: list[Span], began: float) -> None:
    """Insert the start of the job, which it reports itself, between two observations."""
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
            state_name = record.get("state")
            return State(state_name) if state_name in set(State) else None
        case _:
            return None


_MOST_MISSING = 10


def find_failure(run: Run) -> HibaliError | None:
    """Return the error for a run that failed; None for one that succeeded or has not ended."""
    if run.sweep is not None:
        return _find_sweep_failure(run)
    if run.state is State.FAILED and run.status.missing:
        return _outputs_missing(run)
    if run.state is State.FAILED:
        how = (
            f"ended with exit code {run.status.exit_code}"
            if run.status.exit_code is not None
            else "was ended"
        )
        why = f" ({run.status.reason})" if run.status.reason else ""
        if run.status.reason.startswith(NOT_STARTED):
            how, why = "was", f" {run.status.reason}"
        if run.status.reason.endswith(TIME_LIMIT):
            return RunFailedError(
                "time-limit",
                f"the tool {how}{why}",
                subject=run.id,
                hint="Run the same command again with a longer --time; it starts from the beginning. "
                f"To give the new run a checkpoint among the outputs, fetch that first: hibali runs collect {run.id}",
            )
        return RunFailedError(
            "run-failed",
            f"the tool {how}{why}",
            subject=run.id,
            hint=f"To see why: hibali runs logs {run.id}",
        )
    if run.state is State.CANCELLED:
        why = f" ({run.status.reason})" if run.status.reason else ""
        return RunFailedError("run-cancelled", f"the run was cancelled{why}", subject=run.id)
    if run.state is State.LOST:
        return TryLaterError(
            "run-lost",
            f"the result of this run is unknown: {run.status.reason}",
            subject=run.id,
            hint=f"To query the site again: hibali runs wait {run.id}",
        )
    return None


def _outputs_missing(run: Run) -> OutputsMissingError:
    """Return the error that lists each missing output with its expected path."""
    paths = {each.id: each.path for each in run.spec.outputs}
    lines = [f"{each}: {paths.get(each, '?')}" for each in run.status.missing[:_MOST_MISSING]]
    more = len(run.status.missing) - len(lines)
    what = (
        "a required output is"
        if len(run.status.missing) == 1
        else f"{len(run.status.missing)} required outputs are"
    )
    return OutputsMissingError(
        "outputs-missing",
        "\n".join(
            [f"the tool exited with 0, but {what} missing:", *lines, *([f"and {more} more"] if more else [])]
        ),
        subject=run.id,
        hint=f"To see why: hibali runs logs {run.id} --stderr",
    )


def raise_failure(runs: list[Run]) -> None:
    """Raise the error of the first unsuccessful run."""
    for run in runs:
        failure = find_failure(run)
        if failure is not None:
            raise failure


def _find_sweep_failure(run: Run) -> HibaliError | None:
    if not run.state.ended:
        return None
    counts = counts_text(run)
    hint = f"`hibali runs logs {run.id} --task N` shows why; `hibali runs rerun {run.id} --failed` reruns the failed tasks."
    if failed := run.in_state(State.FAILED):
        if all(run.tasks[number].missing for number in failed):
            return OutputsMissingError(
                "outputs-missing",
                f"the tool exited with 0 in every task, but required outputs of {counted(len(failed), 'task')} are missing: {counts}",
                subject=run.id,
                hint=hint,
            )
        late = sum(run.tasks[number].reason.endswith(TIME_LIMIT) for number in failed)
        why = f"; {counted(late, 'task')} reached the time limit" if late else ""
        return RunFailedError("tasks-failed", f"some tasks failed: {counts}{why}", subject=run.id, hint=hint)
    if run.in_state(State.CANCELLED):
        return RunFailedError(
            "run-cancelled", f"the sweep was cancelled: {counts}", subject=run.id, hint=hint
        )
    if run.in_state(State.LOST):
        return TryLaterError(
            "run-lost",
            f"the results of some tasks are unknown: {counts}",
            subject=run.id,
            hint=f"To query the site again: hibali runs wait {run.id}",
        )
    return None


def counts_text(run: Run) -> str:
    """Return the number of tasks in each state."""
    return ", ".join(f"{count} {state}" for state, count in run.counts().items())
