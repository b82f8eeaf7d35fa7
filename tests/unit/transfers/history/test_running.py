"""Test what other processes see of a running operation."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hibali.events import Carried, Event, Listing, Moved, Planned, Round, ignore
from hibali.ledger import Journal, ledger_folder, now
from transfers.history.index import read_details, read_latest, read_operations
from transfers.history.operations import Filter, Result
from transfers.history.running import Clock, ProgressFile, parse_progress, read_clock, running_operations

FIELDS = {
    "id": "20260102-030405-0a1b2c3d",
    "operation": "push",
    "source": "data",
    "target": "there:data",
    "began": "2026-01-02T03:04:05.000000Z",
}
PLAN = Planned(files=4, bytes=400, files_to_move=3, bytes_to_move=300, files_kept=1, files_to_delete=0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path / "state"))
    return tmp_path / "state" / "running"


def moved(name: bytes) -> Moved:
    return Moved(name, "file", 100, None, "digest", 0)


def record_of(folder: Path, **changes: Any) -> dict[str, Any]:
    [path] = folder.glob("*.json")
    return {**json.loads(path.read_bytes()), **changes}


def test_a_running_operation_is_listed_until_it_ends(folder: Path) -> None:
    seen: list[Event] = []
    progress = ProgressFile({**FIELDS, "schedule": "nightly", "firing": "x"}, seen.append)
    for event in (Listing(), PLAN):
        progress(event)
    [found] = running_operations()
    assert seen == [Listing(), PLAN]
    assert found.fields == {**FIELDS, "schedule": "nightly"}
    assert (found.phase, found.share, found.rate, found.following) == ("moving", 0.0, None, None)
    [path] = folder.glob("*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    progress.close()
    progress(Listing())
    assert running_operations() == []
    assert list(folder.iterdir()) == []


def test_the_file_is_written_once_a_second_whatever_the_number_of_events(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [1000.0]
    monkeypatch.setattr("transfers.history.running.time.monotonic", lambda: at[0])
    progress = ProgressFile(FIELDS, lambda _: None)
    progress(PLAN)
    written = []
    for _ in range(100):
        at[0] += 0.05
        progress(Carried(1))
        written.append(record_of(folder)["monotonic"])
    assert 4 <= len(set(written)) <= 6


def test_the_rate_falls_and_the_time_left_grows_while_nothing_is_reported(folder: Path) -> None:
    progress = ProgressFile(FIELDS, lambda _: None)
    progress(PLAN)
    clock = read_clock()
    record = record_of(folder, bytes=100, window_bytes=100, window_seconds=4.0, monotonic=clock.monotonic)
    now = parse_progress(record, clock)
    later = parse_progress(record, replace(clock, monotonic=clock.monotonic + 36))
    assert now is not None
    assert later is not None
    # not exact: the differences of a clock are as fine as its value is large
    assert (now.rate, now.seconds_left, now.silent_seconds) == pytest.approx((25.0, 8.0, 0.0))
    assert (later.rate, later.seconds_left, later.silent_seconds) == pytest.approx((2.5, 80.0, 36.0))
    assert parse_progress({**record, "window_seconds": 1.0}, clock).seconds_left is None  # type: ignore[union-attr]


@pytest.mark.parametrize("jump", [-10 * 86400.0, 10 * 86400.0])
def test_a_changed_clock_changes_nothing_on_the_same_machine(folder: Path, jump: float) -> None:
    ProgressFile(FIELDS, lambda _: None)(PLAN)
    clock = read_clock()
    found = parse_progress(record_of(folder), replace(clock, wall=clock.wall + jump))
    assert found is not None
    assert found.silent_seconds < 60


def test_an_operation_of_another_machine_counts_as_killed_after_a_silent_day(folder: Path) -> None:
    ProgressFile(FIELDS, lambda _: None)(PLAN)
    clock = read_clock()
    record = record_of(folder)
    record["holder"] = {**record["holder"], "host": "other", "boot": "other"}

    def after(seconds: float) -> Any:
        return parse_progress(record, Clock(clock.wall + seconds, 0.0, clock.own))

    assert after(3600).host == "other"
    assert 3590 <= after(3600).silent_seconds <= 3660
    assert after(-3600).silent_seconds == 0.0
    assert after(2 * 86400) is None


def test_a_killed_process_and_a_reused_process_number_are_recognised(folder: Path) -> None:
    program = f"""
import os, signal
from hibali.events import Listing
from transfers.history.running import ProgressFile
ProgressFile({FIELDS!r}, lambda _: None)(Listing())
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    record = record_of(folder)
    assert running_operations() == []
    assert list(folder.iterdir()) == []

    clock = read_clock()
    reused = {**record["holder"], "pid": clock.own.pid}
    assert parse_progress({**record, "holder": reused}, clock) is None
    own = {**reused, "start": clock.own.start}
    assert parse_progress({**record, "holder": own}, clock) is not None
    assert parse_progress({**record, "holder": {**own, "boot": "before"}}, clock) is None


@pytest.mark.parametrize(
    "change",
    [
        {"holder": {}},
        {"bytes": "many"},
        {"monotonic": float("nan")},
        {"window_seconds": None},
        {"target": None, "follows": None, "holder": 3},
    ],
)
def test_a_damaged_file_is_ignored_and_removed(folder: Path, change: dict[str, Any]) -> None:
    ProgressFile(FIELDS, lambda _: None)
    [path] = folder.glob("*.json")
    path.write_text(json.dumps(record_of(folder, **change)))
    assert running_operations() == []
    path.write_bytes(b"{")
    (folder / "other.txt").touch()
    assert running_operations() == []
    assert [each.name for each in folder.iterdir()] == ["other.txt"]


def test_a_followed_source_shows_what_was_sent_and_what_waits() -> None:
    progress = ProgressFile(FIELDS, lambda _: None, follows=True)
    for number in (1, 2):
        for event in (PLAN, moved(b"a"), Round(number, 4, 400, 1, 100, 3 - number, 0)):
            progress(event)
    [found] = running_operations()
    assert found.following == {"files_sent": 2, "bytes_sent": 200, "files_waiting": 1}
    assert found.phase == "waiting"
    progress(PLAN)  # its counts include what was sent before
    [found] = running_operations()
    assert (found.phase, found.counts["files_to_do"], found.counts["bytes_to_do"]) == ("moving", 1, 100)


def test_a_full_disk_does_not_stop_the_operation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("transfers.history.running.replace_content", full)
    seen: list[Event] = []
    ProgressFile(FIELDS, seen.append)(Listing())
    assert seen == [Listing()]
    assert list(folder.iterdir()) == []


def test_history_says_under_way_only_while_the_process_lives() -> None:
    fields = {"id": "20260102-030405-0a1b2c3d", "operation": "push", "source": "a", "target": "b:c"}
    began = {"schema": 1, "kind": "operation", **fields, "at": now()}
    Journal(ledger_folder("operations") / f"{fields['id']}.jsonl", began).close()

    def results() -> list[Result]:
        [found] = read_operations()
        for result in (Result.UNDER_WAY, Result.UNFINISHED):
            assert read_latest(Filter(results=[result]))[1] == (found.result() is result)
        return [found.result(), read_details(fields["id"]).operation.result()]

    assert results() == [Result.UNFINISHED] * 2, "it was killed a moment ago"
    progress = ProgressFile({**fields, "began": now()}, ignore)
    assert results() == [Result.UNDER_WAY] * 2
    progress.close()
    assert results() == [Result.UNFINISHED] * 2, "Ctrl-C before the receipt"
