"""What a pilot wrote of its tasks while it was at work, and what that makes of each with its job's own state; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from hibali.errors import HibaliError
from hibali.strict_json import read_json
from runs.run import State
from runs.scheduler import Phase, Status
from runs.verdict import ASKED, ExitRecord, Seen

_ENDED, _OVER, _BROKEN = (
    "ended",
    "over",
    "killed",
)  # in place of the scheduler's words, which speak of the whole job


@dataclass(frozen=True, slots=True)
class Told:
    """The tasks that began since the allocation was last started, those that ended, and those whose script was killed."""

    begun: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    broken: frozenset[int] = frozenset()


def read_journal(content: bytes) -> Told:
    """What `runs/pilot/program.py` wrote; a line that is none, as the last one may be, says nothing."""
    begun: set[int] = set()
    ended: set[int] = set()
    broken: set[int] = set()
    for line in content.splitlines():
        try:
            record = read_json(line, "journal.jsonl")
        except HibaliError:
            continue
        if not isinstance(record, dict):
            continue
        if record.get("kind") == "pilot":
            begun.clear()
        for known, name in ((begun, "begun"), (ended, "ended"), (broken, "broken")):
            known.update(_numbers(record.get(name)))
    return Told(frozenset(begun), frozenset(ended), frozenset(broken))


def _numbers(found: Any) -> Iterable[int]:
    return [each for each in found if type(each) is int] if isinstance(found, list) else ()


def status_of(number: int, job: Status, told: Told) -> Status:
    """A task of an allocation, as a scheduler would speak of a task of a job array."""
    if number in told.broken:
        return Status(Phase.ENDED, _BROKEN)
    if number in told.ended:
        return Status(Phase.ENDED, _ENDED if job.phase.queued else _OVER)
    if job.phase is Phase.RUNNING and number not in told.begun:
        return Status(Phase.WAITING, job.native, "waits in its allocation")
    return job


def judge_in_allocation(
    seen: Seen, status: Status, record: ExitRecord | None, *, cancelled: bool, allocation: int, more: bool
) -> Seen:
    """The same of a task in an allocation, the first or a later one; `more` says that another one may follow.

    A task ends with a record of its own end and no signal, and only then (or when its script is killed while the others go on): one that was cut off is not
    FAILED but STAGED again, as long as an allocation may follow.
    """
    if record is not None and record.signal in {"", ASKED}:
        return seen
    if status.native == _BROKEN and record is None:
        return Seen(State.FAILED, "", "its script was killed, and left no exit record")
    if status.native == _ENDED:
        return Seen(State.RUNNING, "", "")  # a shared filesystem may show its record late
    if status.phase.queued:
        return Seen(
            State.WAITING if status.phase is Phase.WAITING else State.RUNNING, status.native, status.reason
        )
    if cancelled:
        return replace(seen, state=State.CANCELLED) if seen.state is State.LOST else seen
    because = f"allocation {allocation} ended before it" + (f": {seen.native}" if seen.native else "")
    if more:
        return Seen(State.STAGED, seen.native, because)
    return (
        replace(seen, state=State.FAILED, reason=f"{because}; it was the last")
        if seen.state is not State.CANCELLED
        else seen
    )
