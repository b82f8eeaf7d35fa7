"""Test that unfinished runs are found, and ended ones not read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hibali.ledger import ledger_folder
from hibali.unreadable import collect_unreadable
from runs.present import UnfinishedRuns
from runs.store import RunStore

FIELDS: dict[str, Any] = {
    "pipeline": "bet@1.0",
    "pipeline_digest": "0" * 64,
    "site": "there",
    "scheduler": "direct",
    "container": "bare",
    "name": "",
    "invocation": {},
    "inputs": [],
    "outputs": [],
}
SWEEP = {"tasks": "1-2", "columns": [], "rows": [[], []], "sets": [[]], "set_of": [0, 0]}
IDS = [f"20260102-030405-0000000{number}" for number in range(4)]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path / "state"))
    return RunStore()


def see(store: RunStore, run_id: str, state: str) -> None:
    store.note(run_id, "seen", {"state": state, "native": "", "reason": ""})


def found(runs: UnfinishedRuns) -> dict[str, str]:
    return {each.run.id: str(each.run.state) for each in runs.read()}


def test_runs_and_sweeps_are_unfinished_until_their_end_is_known(store: RunStore) -> None:
    runs = UnfinishedRuns()
    assert found(runs) == {}
    for run_id in IDS[:3]:
        store.begin(run_id, "key", FIELDS)
    store.begin(IDS[3], "key", {**FIELDS, "sweep": SWEEP})
    for run_id in IDS[:3]:
        store.note(run_id, "submitted", {"job": "1"})
    see(store, IDS[0], "RUNNING")
    see(store, IDS[1], "LOST")  # may reappear, but does not run as far as is known
    see(store, IDS[2], "SUCCEEDED")
    assert found(runs) == {IDS[0]: "RUNNING", IDS[3]: "PREPARED"}
    see(store, IDS[0], "FAILED")
    assert found(runs) == found(UnfinishedRuns()) == {IDS[3]: "PREPARED"}


def test_the_time_of_a_state_is_that_of_its_first_observation(store: RunStore) -> None:
    store.begin(IDS[0], "key", FIELDS)
    store.note(IDS[0], "submitted", {"job": "1"})
    see(store, IDS[0], "RUNNING")
    runs = UnfinishedRuns()
    [first] = runs.read()
    see(store, IDS[0], "RUNNING")
    [again] = runs.read()
    assert again.since == first.since > 0


def test_damaged_records_are_named(store: RunStore) -> None:
    store.begin(IDS[0], "key", FIELDS)
    folder = ledger_folder("runs")
    (folder / f"{IDS[1]}.jsonl").write_text('{"kind":"seen","state":"NONSENSE"}\n{"kind"')
    (folder / f"{IDS[2]}.jsonl").write_bytes(b"")
    (folder / "other.jsonl").write_text("{}")
    runs = UnfinishedRuns()
    for _ in range(2):  # also what was read before
        with collect_unreadable() as unreadable:
            assert found(runs) == {IDS[0]: "PREPARED"}
        assert sorted(unreadable) == [str(folder / f"{each}.jsonl") for each in IDS[1:3]]
