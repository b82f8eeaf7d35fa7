"""Test the lines of `hibali status`."""

from __future__ import annotations

from typing import Any

import pytest

from hibali_plugins.status.showing import formatted, operation_line
from runs.present import StatusItem
from transfers.history.running import RunningOperation

FIELDS = {
    "id": "20260102-030405-0a1b2c3d",
    "operation": "push",
    "source": "data",
    "target": "there:data",
    "began": "2026-01-02T03:04:05Z",
    "schedule": None,
}
COUNTS = {
    "files": 1,
    "files_to_do": 4,
    "bytes": 300,
    "bytes_to_do": 1000,
    "files_deleted": 0,
    "files_failed": 0,
    "retries": 0,
}


def line(kind: str, name: str, state: str, facts: list[str]) -> StatusItem:
    return StatusItem(kind, name, state, facts, dict)


def operation(**changes: Any) -> RunningOperation:
    values: dict[str, Any] = {
        "fields": FIELDS,
        "host": "here",
        "pid": 1,
        "phase": "moving",
        "counts": COUNTS,
        "following": None,
        "rate": 10.0,
        "seconds_left": 70.0,
        "silent_seconds": 0.0,
        **changes,
    }
    return RunningOperation(**values)


@pytest.mark.parametrize(
    ("changes", "state", "facts"),
    [
        ({}, "running", ["30 % of 1.0 kB", "10 B/s", "1 min 10 s left", "1 of 4 files"]),
        ({"phase": "listing"}, "listing", []),
        ({"phase": "waiting"}, "connecting", []),
        ({"rate": None, "seconds_left": None}, "running", ["30 % of 1.0 kB", "1 of 4 files"]),
        (
            {"phase": "hashing", "silent_seconds": 90.0, "counts": {**COUNTS, "files_failed": 2}},
            "hashing",
            [
                "30 % of 1.0 kB",
                "10 B/s",
                "1 min 10 s left",
                "1 of 4 files",
                "2 failed",
                "no progress for 1 min 30 s",
            ],
        ),
        (
            {
                "phase": "waiting",
                "silent_seconds": 9000.0,
                "following": {"files_sent": 2, "bytes_sent": 2000, "files_waiting": 1},
            },
            "following",
            ["2 files (2.0 kB) sent", "1 not finished yet"],
        ),
    ],
)
def test_a_transfer_is_one_line(changes: dict[str, Any], state: str, facts: list[str]) -> None:
    line = operation_line(operation(**changes))
    assert (line.kind, line.name, line.state) == ("transfer", "push data there:data", state)
    assert line.facts == [*facts, FIELDS["id"]]


def test_a_removal_names_its_place_once() -> None:
    fields = {**FIELDS, "operation": "rm", "source": "there:data"}
    assert operation_line(operation(fields=fields)).name == "rm there:data"


def test_lines_are_aligned_and_fit_the_width_with_the_first_facts() -> None:
    lines = [
        line("transfer", "push data there:data", "running", ["30 %", "10 B/s", "1 of 4 files"]),
        line("run", "20260102-030405-00000001", "RUNNING", ["bet at juwels"]),
    ]
    assert formatted(lines) == [
        "transfer  push data there:data      running  30 %, 10 B/s, 1 of 4 files",
        "run       20260102-030405-00000001  RUNNING  bet at juwels",
    ]
    for width in range(30, 90):
        assert all(len(text) <= width for text in formatted(lines, width))
    assert formatted(lines, 58)[0].endswith("running  30 %, 10 B/s")


def test_names_cannot_control_the_terminal() -> None:
    [text] = formatted([line("transfer", "push \x1b[31m\n\u202e x", "running", ["\x07"])])
    assert text == r"transfer  push \x1b[31m\n\u202e x  running  \x07"
