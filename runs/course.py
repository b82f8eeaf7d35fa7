"""How a run went by, from the ledger's records: which state it was in, from when until when; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runs.run import Run, State

SKEW_SECONDS = 3600.0  # by how much another machine's clock may be wrong


@dataclass(frozen=True, slots=True)
class Span:
    """A time in one state; seconds since the epoch, `until` None where it lasts."""

    state: State
    since: float
    until: float | None = None


def course_of(records: Iterable[Mapping[str, Any]]) -> list[Span]:
    """The states that a run went through, oldest first, without a gap; the last one lasts.

    Where the job itself says when it began and ended, that counts, as far as its clock agrees with ours.
    """
    spans: list[Span] = []
    for record in records:
        state, at = _state_of(record), read_moment(record.get("at"))
        if state is None or at is None or (spans and not _follows(spans[-1].state, state)):
            continue
        told = _told_by_job(record, spans[0].since, at) if state.ended and spans else None
        if told is not None:
            _run_from(spans, told[0])
            at = told[1]
        _enter(spans, state, at)
    return spans


def course_of_run(run: Run, records: Iterable[Mapping[str, Any]]) -> list[Span]:
    """The same of a run that may be a sweep: that is submitted with its first job, runs from its first task on, and ends with its last."""
    if run.sweep is None:
        return course_of(records)
    told = list(_as_one_job(records))
    spans = course_of(told)
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


def _told_by_job(record: Mapping[str, Any], since: float, at: float) -> tuple[float, float] | None:
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
