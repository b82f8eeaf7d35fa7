"""Test comparing sweeps: tasks are matched by their answers, not by number or order."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from hibali_plugins.bundles.compare import (
    OutputResult,
    TaskPair,
    compare_tasks,
    differing_facts,
    differing_resources,
    differing_tasks,
    match_tasks,
    measurements,
)
from runs.model import Run, RunStatus, State, Sweep
from tests.support.runs import make_run

VALUES = some.lists(some.tuples(some.integers(0, 3), some.sampled_from(["x", "y"])), min_size=1, max_size=8)


def run_of(
    rows: list[tuple[Any, ...]] | None, columns: tuple[str, ...] = ("a", "b"), **invocation: Any
) -> Run:
    sweep = None
    if rows is not None:
        tasks = {number: RunStatus(State.SUCCEEDED, exit_code=0) for number in range(1, len(rows) + 1)}
        sweep = Sweep(tasks, columns, tuple(rows), set_of=(0,) * len(rows))
    return make_run(id="r", site="s", state=State.SUCCEEDED, sweep=sweep, invocation=invocation)


@given(VALUES, VALUES, some.randoms())
def test_every_task_is_in_one_pair_of_equal_values(
    mine: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]], chance: random.Random
) -> None:
    pairs = match_tasks(run_of(mine), run_of(theirs))
    assert sorted(pair.a for pair in pairs if pair.a is not None) == list(range(1, len(mine) + 1))
    assert sorted(pair.b for pair in pairs if pair.b is not None) == list(range(1, len(theirs) + 1))
    both = [(pair.a, pair.b) for pair in pairs if pair.a is not None and pair.b is not None]
    assert all(mine[a - 1] == theirs[b - 1] for a, b in both)
    assert len(both) == (Counter(mine) & Counter(theirs)).total()
    shuffled = list(mine)
    chance.shuffle(shuffled)
    assert all(None not in (pair.a, pair.b) for pair in match_tasks(run_of(mine), run_of(shuffled)))


def test_a_varied_value_matches_a_common_value_of_the_other_run() -> None:
    rows: list[tuple[Any, ...]] = [(1, "x"), (2, "x")]
    other = run_of([(2,), (1,)], ("a",), b="x")
    assert match_tasks(run_of(rows), other) == [TaskPair(1, 2), TaskPair(2, 1)]
    assert match_tasks(run_of(rows), run_of(None, a=2, b="x")) == [TaskPair(1, None), TaskPair(2, 0)]
    assert match_tasks(run_of(None, a=2), run_of(None, a=3)) == [TaskPair(0, 0)]
    assert [fact.name for fact in differing_facts(run_of(rows), other)] == []


def test_requested_resources_are_compared_by_name() -> None:
    def fields(**values: Any) -> list[dict[str, Any]]:
        return [{"name": name, "value": value, "from": "command line"} for name, value in values.items()]

    a, b = fields(cores=2, memory=4 << 30, time=60), fields(cores=4, memory=4 << 30, directive="--qos=x")
    assert [(fact.name, fact.a, fact.b) for fact in differing_resources(a, b)] == [
        ("resource cores", "2", "4"),
        ("resource directive --qos=x", None, "requested"),
        ("resource time", "00:01:00", None),
    ]
    assert differing_resources(a, a) == differing_resources(None, b) == []


def test_what_both_took_is_summed_and_compared_by_task() -> None:
    def took(*seconds: int) -> Run:
        run = run_of([(each,) for each in seconds], ("a",))
        assert run.sweep is not None
        for number, each in enumerate(seconds, start=1):
            ended = f"2026-01-02T03:04:{each:02}Z"
            status = RunStatus(
                State.SUCCEEDED, started="2026-01-02T03:04:00Z", ended=ended, memory_bytes=each
            )
            dict.__setitem__(run.sweep.tasks, number, status)  # type: ignore[arg-type]
        return run

    a, b = took(1, 5), took(5, 7, 1)
    assert [(fact.name, fact.a, fact.b) for fact in measurements(a, b, match_tasks(a, b))] == [
        ("seconds", 6.0, 13.0),
        ("memory", 5, 7),
        ("task 1 and 3: seconds", 1.0, 1.0),
        ("task 2 and 1: seconds", 5.0, 5.0),
    ]


def test_outputs_of_matched_tasks_are_compared() -> None:
    pairs = [TaskPair(1, 2), TaskPair(2, None), TaskPair(None, 1)]
    mine = {b"1/out/a": "d", b"1/only": "e", b"2/a": "f"}
    found = compare_tasks(pairs, mine, {b"2/out/a": "d", b"1/a": "f"})
    assert [(each.output.path, each.output.result, each.name_a, each.name_b) for each in found] == [
        (b"only", OutputResult.MISSING, b"1/only", b"2/only"),
        (b"out/a", OutputResult.EQUAL, b"1/out/a", b"2/out/a"),
        (b"a", OutputResult.MISSING, b"2/a", None),
        (b"a", OutputResult.EXTRA, None, b"1/a"),
    ]
    single = compare_tasks(
        [TaskPair(0, 3)], {b"3/a": "d"}, {b"3/3/a": "d"}
    )  # a path of a run that is not a sweep
    assert [(each.output.result, each.name_a, each.name_b) for each in single] == [
        (OutputResult.EQUAL, b"3/a", b"3/3/a")
    ]


def test_different_ends_of_tasks_are_reported() -> None:
    failed = run_of([(1, "x")])
    assert failed.sweep is not None
    tasks: Any = failed.sweep.tasks
    tasks[1] = RunStatus(State.FAILED, exit_code=3)
    good = run_of([(1, "x"), (2, "y")])
    facts = differing_tasks(good, failed, match_tasks(good, failed))
    assert [(fact.name, fact.a, fact.b) for fact in facts] == [
        ("task 1: state", "SUCCEEDED", "FAILED"),
        ("task 1: exit code", 0, 3),
        ("task 2", {"a": 2, "b": "y"}, None),
    ]
