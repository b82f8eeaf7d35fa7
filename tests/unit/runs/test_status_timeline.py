"""Test the timeline of a run from its records in the ledger."""

from __future__ import annotations

from typing import Any

from runs.model import State
from runs.records import fold_records
from runs.status import run_timeline, timeline_of


def record(kind: str, second: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "at": f"2026-01-02T03:04:{second:02}.000000Z", **more}


def seen(second: int, state: str, **more: Any) -> dict[str, Any]:
    return record("seen", second, state=state, native="X", reason="", **more)


BEGIN = [record("prepared", 0), record("staged", 4), record("submitting", 5), record("submitted", 6)]


def periods_of(records: list[dict[str, Any]]) -> list[tuple[str, float, float | None]]:
    spans = timeline_of(records)
    first = spans[0].since
    return [
        (span.state, span.since - first, None if span.until is None else span.until - first) for span in spans
    ]


def test_states_follow_each_other_without_a_gap() -> None:
    records = [
        *BEGIN,
        seen(10, "WAITING"),
        seen(20, "RUNNING"),
        seen(30, "SUCCEEDED"),
        record("collected", 40),
    ]
    assert periods_of(records) == [
        ("PREPARED", 0, 4),
        ("STAGED", 4, 6),
        ("SUBMITTED", 6, 10),
        ("WAITING", 10, 20),
        ("RUNNING", 20, 30),
        ("SUCCEEDED", 30, None),
    ]


def test_times_of_the_exit_record_take_precedence() -> None:
    times = {"started": "2026-01-02T03:04:12Z", "ended": "2026-01-02T03:04:25Z", "exit_code": 0}
    for between in (
        [],
        [seen(10, "WAITING")],
        [seen(10, "WAITING"), seen(20, "RUNNING")],
        [seen(20, "WAITING")],
    ):
        assert periods_of([*BEGIN, *between, seen(30, "FAILED", **times)])[-2:] == [
            ("RUNNING", 12, 25),
            ("FAILED", 25, None),
        ]


def test_wrong_clocks_are_ignored_and_times_never_decrease() -> None:
    wrong = {"started": "1999-01-02T03:04:12Z", "ended": "2026-01-02T03:04:25Z", "exit_code": 0}
    assert periods_of([*BEGIN, seen(30, "FAILED", **wrong)])[-1] == ("FAILED", 30, None)
    for text in ("", "soon", "9999-99-99T00:00:00Z", "2026-01-02T03:04:12", "\u0663"):
        assert periods_of([*BEGIN, seen(30, "FAILED", started=text, ended=text)])[-1] == ("FAILED", 30, None)
    lags = {"started": "2026-01-02T03:03:50Z", "ended": "2026-01-02T03:03:59Z", "exit_code": 0}
    spans = timeline_of([*BEGIN, seen(30, "SUCCEEDED", **lags)])
    assert all(span.until is None or span.until >= span.since for span in spans)
    assert spans[-1].state is State.SUCCEEDED


def test_a_known_end_is_final() -> None:
    assert (
        periods_of([*BEGIN, seen(10, "FAILED"), seen(20, "RUNNING"), record("submitted", 22)])[-1][0]
        == "FAILED"
    )
    records = [*BEGIN, seen(10, "LOST"), record("submitted", 12), seen(20, "WAITING")]
    assert periods_of(records)[-1] == ("LOST", 10, None)
    assert periods_of([*records, seen(40, "SUCCEEDED")])[-1] == ("SUCCEEDED", 40, None)
    assert timeline_of([]) == []
    assert timeline_of([{"kind": "seen", "state": "NEW", "at": 7}, {"kind": "later"}]) == []


def test_a_sweep_runs_from_its_first_task_to_its_last() -> None:
    run_id = "20260102-030405-0a1b2c3d"
    fields = {
        **dict.fromkeys(
            ("key", "pipeline", "pipeline_digest", "site", "name", "scheduler", "container"), "x"
        ),
        "id": run_id,
        "outputs": [],
        "sweep": {"tasks": "1-3", "columns": [], "rows": [[], [], []], "sets": [[]], "set_of": [0, 0, 0]},
    }

    def tasks(second: int, state: str, numbers: str) -> dict[str, Any]:
        change = {"state": state, "native": "", "reason": "", "tasks": numbers}
        return record("tasks", second, changes=[change], ends=[])

    begun = [
        record("prepared", 0, **fields),
        record("staged", 4, folder="/x", chunks=["1-2", "3"]),
        record("chunk", 6, chunk=1, job="7"),
        tasks(10, "WAITING", "1-2"),
        tasks(20, "RUNNING", "1"),
        record("chunk", 22, chunk=2, job="8"),
        tasks(24, "WAITING", "3"),
        tasks(30, "SUCCEEDED", "1-2"),
    ]
    for records, last in (
        (begun, ("RUNNING", 20, None)),
        ([*begun, tasks(40, "FAILED", "3"), record("reported", 50)], ("FAILED", 40, None)),
    ):
        spans = run_timeline(fold_records(run_id, records), records)
        assert [span.state for span in spans][:5] == ["PREPARED", "STAGED", "SUBMITTED", "WAITING", "RUNNING"]
        first = spans[0].since
        assert (spans[-1].state, spans[-1].since - first, spans[-1].until) == last
