"""Test that parameters make every combination, chunks lose no task, and the ledger's ranges record every state."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from hibali.text import read_ranges, write_ranges
from registry.descriptor import read_descriptor
from registry.parameters import make_rows, split_values
from runs.model import Run, State, state_of
from runs.poll import change_fields
from runs.records import fold_records, sweep_fields, sweep_of
from runs.status import ExitRecord, Observation
from runs.sweeps.launch import split_tasks
from tests.end_to_end.run_tools import DESCRIPTOR

PIPELINE = read_descriptor(json.dumps(DESCRIPTOR).encode(), "tool.json")
RUN = "20260102-030405-0a1b2c3d"
NUMBERS = some.sets(some.integers(1, 3000), max_size=60)
WORDS = some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(NUMBERS)
def test_ranges_read_what_they_wrote(numbers: set[int]) -> None:
    text = write_ranges(numbers)
    assert list(read_ranges(text)) == sorted(numbers)
    assert len(text.split(",")) <= max(1, len(numbers))


@given(NUMBERS, some.integers(1, 80), some.integers(1, 80), some.none() | some.integers(1, 80))
def test_chunks_lose_no_task_and_keep_all_limits(
    numbers: set[int], array_size: int, queued_jobs: int, limit: int | None
) -> None:
    ordered = sorted(numbers)
    chunks = split_tasks(ordered, array_size=array_size, queued_jobs=queued_jobs, limit=limit)
    assert list(itertools.chain.from_iterable(chunks)) == ordered
    sizes = [len(chunk) for chunk in chunks]
    assert all(0 < size <= min(array_size, queued_jobs, limit or array_size) for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(some.lists(WORDS, min_size=1, max_size=6))
def test_quoted_values_are_split_where_they_end(values: list[str]) -> None:
    assert split_values(",".join(json.dumps(value) for value in values)) == [
        json.dumps(value) for value in values
    ]


@given(
    some.lists(some.integers(-(10**6), 10**6), min_size=1, max_size=4),
    some.lists(WORDS, min_size=1, max_size=4),
    some.lists(some.lists(WORDS, min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_parameters_make_every_combination_once_typed_by_their_questions(
    codes: list[int], says: list[str], more: list[list[str]]
) -> None:
    rows = make_rows(
        PIPELINE,
        None,
        [
            f"code={','.join(map(str, codes))}",
            f"say={','.join(json.dumps(each) for each in says)}",
            f"more={','.join(json.dumps(each) for each in more)}",
        ],
    )
    expected = [
        {"code": code, "say": say, "more": files} for code, say, files in itertools.product(codes, says, more)
    ]
    assert [row.values for row in rows] == expected


def run_of(numbers: list[int], *changes: dict[str, Any]) -> Run:
    begun = {
        "kind": "prepared",
        "id": RUN,
        "key": "k",
        "pipeline": "p@1",
        "pipeline_digest": "d",
        "site": "here",
        "name": "",
        "scheduler": "slurm",
        "container": "bare",
        "at": "2026-01-02T03:04:05.000000Z",
        "outputs": [],
        "sweep": sweep_fields({number: {"x": number} for number in numbers}, dict.fromkeys(numbers, ())),
    }
    return fold_records(RUN, [begun, *({"kind": "tasks", **each} for each in changes)])


STATES = some.sampled_from([State.WAITING, State.RUNNING, State.SUCCEEDED, State.FAILED, State.LOST])


@given(some.lists(some.dictionaries(some.integers(1, 40), STATES, max_size=40), max_size=6))
def test_changes_reported_in_ranges_combine_to_the_observed_state(looks: list[dict[int, State]]) -> None:
    numbers = list(range(1, 41))
    expected = dict.fromkeys(numbers, State.PREPARED)
    changes: list[dict[str, Any]] = []
    for look in looks:
        run = run_of(numbers, *changes)
        record = ExitRecord(0, "", "node", "1", "2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z")
        seen = {
            number: Observation(state, "X", "", record if state.final else None)
            for number, state in look.items()
        }
        fields = change_fields(sweep_of(run), seen)
        changed = {n: s for n, s in look.items() if not expected[n].final and s is not expected[n]}
        assert (fields is None) == (not changed)
        expected |= changed
        if fields is not None:
            assert len(fields["changes"]) <= len(State)
            changes.append(json.loads(json.dumps(fields)))
    run = run_of(numbers, *changes)
    tasks = sweep_of(run).tasks
    assert {number: task.state for number, task in tasks.items()} == expected
    assert all((task.exit_code == 0) == task.state.final for task in tasks.values())
    if changes:
        assert run.state is state_of(tasks.values())
