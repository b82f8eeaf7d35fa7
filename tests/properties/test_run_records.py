"""Test that runs recorded by earlier versions are read and shown as when they were recorded."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hibali.documents import line_of_json
from runs.model import Run
from runs.records import fold_records, one_task

RECORDINGS = sorted((Path(__file__).parents[1] / "recordings" / "runs").glob("*.json"))
IDS = [path.stem for path in RECORDINGS]


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_bytes()))


# the fields' names at the time of the recordings
RECORDED_NAMES = {
    "argv": "words",
    "begun": "submitting",
    "cancel_accepted": "told",
    "cancel_marked": "marked",
    "from_copy": "kept",
    "reference": "word",
    "version": "hibali",
}
DERIVED = ("on_hold", "needs", "reference", "waits")


def flat(run: Run) -> Any:
    """Return every field of a run by its name in the recordings, and the derived values."""
    grouped = {each.name: getattr(run, each.name) for each in dataclasses.fields(run)}
    found: dict[str, Any] = {name: grouped.pop(name) for name in ("id", "key", "created", "task")}
    found["is_sweep"] = grouped.pop("sweep") is not None
    for group in grouped.values():
        found |= {each.name: getattr(group, each.name) for each in dataclasses.fields(group)}
    found |= {name: getattr(run, name) for name in DERIVED}
    found |= {"folder": run.folder.decode("latin-1"), "failure_exit": int(run.failure_exit)}
    plain = json.loads(json.dumps(found, default=_plain))
    return {RECORDED_NAMES.get(name, name): value for name, value in plain.items()}


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else dict(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", RECORDINGS, ids=IDS)
def test_a_recorded_run_is_read_and_shown_as_it_was_when_it_was_recorded(path: Path) -> None:
    recorded = read(path)
    run_id, records = recorded["fields"]["id"], recorded["records"]
    run = fold_records(run_id, records)
    assert flat(run) == recorded["fields"]
    assert line_of_json(run.to_whole_record()) == line_of_json(recorded["record"])
    states = [fold_records(run_id, records[:count]).state for count in range(1, len(records) + 1)]
    assert states == recorded["states"]
    if run.sweep is not None:
        assert [flat(one_task(run, number)) for number in run.sweep.tasks] == recorded["tasks"]


@given(some.sampled_from(RECORDINGS).map(read), some.data())
def test_a_final_state_is_not_changed_by_later_records(recorded: dict[str, Any], data: Any) -> None:
    run_id, [first, *more] = recorded["fields"]["id"], recorded["records"]
    singles = [
        each for each in more if each["kind"] in {"seen", "submitted", "cancel", "cancel-told", "reported"}
    ]
    noted = data.draw(some.lists(some.sampled_from(singles), max_size=8)) if singles else []
    states = [fold_records(run_id, [first, *noted[:count]]).state for count in range(len(noted) + 1)]
    final = [state for state in states if state.final]
    assert states[len(states) - len(final) :] == final
    assert len(set(final)) <= 1
