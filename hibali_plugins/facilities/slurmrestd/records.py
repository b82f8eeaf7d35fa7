"""Read the answers of slurmrestd, of all versions that hibali knows.

Up to v0.0.38 a number is plain and a state one word; from v0.0.40 on a number is `{set, infinite, number}`, and a state a list: first
the state, then its flags. Source: SchedMD/slurm, openapi/v0.0.38/jobs.c and data_parser/v0.0.40 to v0.0.46/parsers.c.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hibali.subprocesses import without_secrets
from hibali.text import printable
from runs.schedulers.base import MOST_TASKS, Phase, Status
from runs.schedulers.slurm import explain_memory, explain_state, phase_of

Record = Mapping[str, Any]
_MOST_SHOWN = 300  # characters of what Slurm says
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")
_UNLISTED = 10_000  # tasks that may follow in a list of tasks that Slurm cut off


def number_of(value: Any) -> int | None:
    """Return a number of any version, None if it is not set."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    return value if type(value) is int else None


def within(record: Any, *keys: str) -> Any:
    """Return a member of a member; None without it."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record


def error_in(body: bytes) -> tuple[int, str]:
    """Return the last error's number, 0 without one, and what all errors say, printable and short."""
    try:
        errors = [each for each in json.loads(body)["errors"] if isinstance(each, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0, ""
    numbers = [number_of(each.get("error_number", each.get("error_code"))) for each in errors]
    texts = (each.get(key) for each in errors for key in ("error", "description"))
    words = dict.fromkeys(" ".join(text.split()) for text in texts if isinstance(text, str) and text)
    return (numbers or [0])[-1] or 0, printable(without_secrets("; ".join(words)))[:_MOST_SHOWN]


def job_of(record: Record) -> str:
    """Return the id of a job, for a task of an array that of the array."""
    array = number_of(record.get("array_job_id", within(record, "array", "job_id")))
    return str(array or number_of(record.get("job_id")) or "")


def queued_status(record: Record) -> Status:
    """Return the status of a job that slurmctld knows."""
    return _status(record, record.get("job_state"), record.get("state_reason"))


def accounted_status(record: Record) -> Status:
    """Return the status of a job in the accounting, with its processor time and the most memory of its steps, in bytes."""
    state = record.get("state")
    status = _status(record, within(state, "current"), within(state, "reason"))
    code, signal = _exit_of(record.get("exit_code"))
    if not status.reason and (code or signal):
        status = replace(status, reason=f"exit code {code}:{signal}")
    steps = record.get("steps")
    steps = steps if isinstance(steps, list) else []
    peaks = [_memory(within(each, "tres", "requested", "max")) for each in steps]
    requested = _memory(within(record, "tres", "requested"))
    status = replace(
        status,
        cpu_seconds=round(sum(map(_processor_seconds, steps)), 3) or None,
        memory_bytes=max(peaks, default=0) or None,
    )
    return explain_memory(status, requested * 1024 * 1024 or None)


def _status(record: Record, state: Any, reason: Any) -> Status:
    """Return the status; a flag that is a state of its own, such as COMPLETING, comes before the state, as in squeue."""
    words = [str(each) for each in (state if isinstance(state, list) else [state])] or [""]
    native = next((each for each in words[1:] if phase_of(each)), words[0])
    phase, shown = phase_of(native), printable(native)[:100]
    if phase is None:
        return Status(Phase.RUNNING, shown, "hibali does not know this state of Slurm")
    signal = _exit_of(record.get("exit_code"))[1]
    if native == "FAILED" and signal:  # the job's own script was killed, and left no exit record
        return Status(Phase.KILLED, shown, f"signal {signal}")
    known = "" if reason in {None, "None"} else printable(str(reason))[:_MOST_SHOWN]
    return Status(phase, shown, explain_state(native, known))


def _exit_of(value: Any) -> tuple[int, int]:
    """Return the exit code and the signal; slurmctld's in v0.0.38 is that of wait(2)."""
    if isinstance(value, dict):
        signal = within(value, "signal", "id") or within(value, "signal", "signal_id")
        return number_of(value.get("return_code")) or 0, number_of(signal) or 0
    raw = number_of(value) or 0
    return raw >> 8 & 255, raw & 127


def _processor_seconds(step: Any) -> float:
    """Return the processor time of a step; that of the job is 0 for short steps."""
    seconds, micro = (number_of(within(step, "time", "total", key)) for key in ("seconds", "microseconds"))
    return (seconds or 0) + (micro or 0) / 1e6


def _memory(resources: Any) -> int:
    found = (
        [each for each in resources if within(each, "type") == "mem"] if isinstance(resources, list) else []
    )
    return max((number_of(each.get("count")) or 0 for each in found), default=0)


def task_statuses(records: Sequence[Record]) -> dict[int, Status]:
    """Return the statuses of an array's tasks; those that wait are together in one record."""
    single: dict[int, Status] = {}
    together: dict[int, Status] = {}
    for record in records:
        index, status = number_of(record.get("array_task_id")), queued_status(record)
        if index is not None:
            single[index] = status
        else:
            together.update(dict.fromkeys(_indices(str(record.get("array_task_string") or "")), status))
    return {**together, **single}


def _indices(text: str) -> Iterator[int]:
    """Yield the numbers of a list such as `1,3-5%2`; those after a list that is cut off (`...`) may all be in it."""
    last = 0
    for part in text.partition("%")[0].split(","):
        if found := _RANGE.fullmatch(part):
            last = min(int(found[2] or found[1]), MOST_TASKS)
            yield from range(int(found[1]), last + 1)
    if text.endswith("..."):
        yield from range(last + 1, last + _UNLISTED)
