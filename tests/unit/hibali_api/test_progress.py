"""Test the bars that `hibali.Progress` draws on standard error."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import hibali as api
from hibali.events import (
    Carried,
    Carrying,
    Ended,
    Event,
    Failed,
    Hashing,
    Listing,
    Moved,
    Planned,
    Retried,
)
from runs.model import RunStatus, State

PLANNED = Planned(5, 4000, 4, 4000, 1, 0)
MOVED = Moved(b"a", "file", 1000, None, "digest", 0)


def drawn(capsys: pytest.CaptureFixture[str], *events: Event) -> str:
    """Return the last state of each bar, one in a line."""
    with api.Progress("scans", draw=True) as progress:
        for event in events:
            progress(event)
    return "\n".join(line.split("\r")[-1] for line in capsys.readouterr().err.splitlines())


def test_bytes_files_and_failures_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Failed(b"x", "unreadable", "denied")
    shown = drawn(capsys, Listing(), PLANNED, Carried(2000), MOVED, MOVED, failed, Ended())
    assert "scans moving:  50%" in shown
    assert "2.00k/4.00k" in shown
    assert "B/s, 2 of 4 files, 1 failed" in shown


def test_resumed_and_repeated_bytes_do_not_lead_beyond_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    large = Carrying(b"a", 3000, 3500, 4000)
    assert "4.00k/4.00k" in drawn(capsys, PLANNED, large, large, Carried(1000), Carried(1000))


def test_empty_files_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert "2/4" in drawn(capsys, Planned(4, 0, 4, 0, 0, 0), MOVED, MOVED)
    assert "1/3" in drawn(capsys, Hashing(3, 0), Carried(0))


def test_a_hostile_reason_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    with api.Progress(draw=True) as progress:
        progress(PLANNED)
        progress(Retried("juwels", 1, 2.0, "\x1b[2J"))
    assert "\x1b[2J" not in capsys.readouterr().err


def test_events_may_come_from_any_thread(capsys: pytest.CaptureFixture[str]) -> None:
    with api.Progress(draw=True) as progress:
        progress(PLANNED)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(progress, [Carried(10)] * 200))
    assert "2.00k/4.00k" in capsys.readouterr().err


def test_the_tasks_of_a_run_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    states = [State.SUCCEEDED, State.FAILED, State.RUNNING]
    tasks = {number: RunStatus(state) for number, state in enumerate(states, 1)}
    run: Any = SimpleNamespace(pipeline="bet@1.0", state=State.RUNNING, tasks=tasks)
    with api.Progress(draw=True) as progress:
        progress.show_run(run)
        assert "2/3" in capsys.readouterr().err
        progress.show_run(SimpleNamespace(**{**vars(run), "tasks": {}, "state": State.SUCCEEDED}))  # type: ignore[arg-type]


@pytest.mark.parametrize("installed", [True, False])
def test_nothing_is_drawn_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "tqdm", None)
        monkeypatch.setattr("hibali_api.progress.find_spec", lambda _: None)
    progress = api.Progress("scans", draw=None if installed else True)
    for event in (Listing(), PLANNED, Carried(1), MOVED, Ended()):
        progress(event)
    assert capsys.readouterr().err == ""
