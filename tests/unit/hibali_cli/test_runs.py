"""Test the table of `runs watch`: its size, and unfinished runs first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from hibali.ledger import short_identifier
from hibali_cli.handlers.runs import Row, count_states, row_of, table_lines
from runs.model import Run, RunStatus, State, Sweep
from tests.support.runs import make_run

NOW = 1_000_000.0


def run(number: int = 0, state: State = State.RUNNING, **more: Any) -> Run:
    fields = {
        "pipeline": "bet@1.0",
        "site": "juwels",
        "scheduler": "slurm",
        "created": "",
        "job": "7",
        "state": state,
    }
    return make_run(**{**fields, "id": f"20260102-030405-{number:08x}", **more})


def texts(rows: list[Row], width: int = 120, height: int = 40) -> list[str]:
    return [line.plain for line in table_lines(rows, width, height, NOW)]


def test_a_row_has_state_duration_and_reason() -> None:
    waiting = run(1, State.WAITING, native="PENDING", reason="Priority")
    failed = run(2, State.FAILED, native="FAILED", exit_code=3)
    shown = texts([row_of(waiting, NOW - 200), row_of(failed, NOW - 10)])
    assert shown[0] == "2 runs: 1 waiting, 1 failed"
    assert shown[2].split() == [
        short_identifier(waiting.id),
        "WAITING",
        "3",
        "min",
        "20",
        "s",
        "bet@1.0",
        "juwels",
        "PENDING:",
        "Priority",
    ]
    assert shown[3].split() == [
        short_identifier(failed.id),
        "FAILED",
        "bet@1.0",
        "juwels",
        "exit",
        "code",
        "3",
    ]


@pytest.mark.parametrize("width", [8, 24, 36, 50, 70, 100, 200])
def test_it_is_never_wider_than_the_terminal(width: int) -> None:
    hostile = run(1, name="\x1b[2J\u202e漢字" * 20, reason="no\nway" * 30)
    shown = texts([row_of(hostile, NOW), row_of(run(2), NOW)], width)
    assert max(map(cell_len, shown)) <= width
    assert not any("\x1b" in line or "\u202e" in line or "\n" in line for line in shown)
    assert width < 36 or "RUNNING" in shown[2]


def test_unfinished_runs_are_shown_first_when_space_is_short() -> None:
    rows = [row_of(run(number, State.SUCCEEDED), NOW - number) for number in range(30)]
    rows[20] = row_of(run(20), NOW)
    shown = texts(rows, height=10)
    assert len(shown) <= 10
    assert any(f"{20:08x}" in line and "RUNNING" in line for line in shown)
    assert shown[-1] == "... and 24 more"


def test_the_tasks_of_a_sweep_are_counted() -> None:
    states = [State.SUCCEEDED] * 5 + [State.RUNNING] * 2 + [State.FAILED]
    sweep = Sweep({number: RunStatus(state) for number, state in enumerate(states, 1)})
    assert row_of(replace(run(), sweep=sweep), NOW).subject == "2 running, 5 succeeded, 1 failed"
    assert count_states([]) == ""
