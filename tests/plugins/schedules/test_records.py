"""Test the records of a schedule's triggers, as reports and `schedule log` read them."""

from __future__ import annotations

import fcntl
from typing import Any

from hibali_plugins.schedules.records import (
    Log,
    fold_triggers,
    log_path,
    note_begun,
    note_ended,
    note_skipped,
    read_triggers,
    schedule_folder,
    triggered_schedules,
)


def test_triggers_are_read_as_they_were_recorded(hibali_home: Any) -> None:
    del hibali_home
    assert read_triggers("nightly") == []
    note_begun("nightly", "a", due="2026-01-01T03:00:00Z", by="cron", made_up=True)
    note_ended(
        "nightly",
        "a",
        exit=0,
        seconds=1.5,
        attempts=2,
        operations=["op"],
        amounts={"files": 3, "files_moved": 1, "proof_moved": "digest"},
    )
    note_begun("nightly", "b", by="hand")
    note_skipped("nightly", "c", because="still-going", message="process 7")
    note_begun("nightly", "d", by="cron")
    with (schedule_folder("nightly") / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        first, second, third, fourth = read_triggers("nightly")
        assert fourth.state == "running"
    assert (first.state, first.operations, first.amount("files"), first.proof) == (
        "done",
        ("op",),
        3,
        "digest",
    )
    assert (first.made_up, first.attempts) == (True, 2)
    assert (second.state, third.state, third.because) == ("broken", "skipped", "still-going")
    assert read_triggers("nightly")[-1].state == "broken"
    assert triggered_schedules() == ["nightly"]
    assert first.to_record()["files_moved"] == 1


def test_unknown_records_are_skipped() -> None:
    lines: list[dict[str, Any]] = [
        {"kind": "ended", "id": "x", "exit": 0},
        {"kind": "begun"},
        {"kind": "new", "id": "y"},
    ]
    assert fold_triggers(lines, "nightly") == []


def test_logs_are_rotated(hibali_home: Any) -> None:
    del hibali_home
    for number in range(6):
        log = Log("nightly")
        log.write_line(f"run {number}")
        log.raw(b"x" * 1_100_000 + b"\n")
        log.close()
    kept = sorted(path.name for path in log_path("nightly").parent.glob("log*"))
    assert kept == ["log.txt", "log.txt.1", "log.txt.2", "log.txt.3"]
    assert b"run 5\n" in log_path("nightly").read_bytes()
    assert b"run 4\n" in log_path("nightly").with_name("log.txt.1").read_bytes()
