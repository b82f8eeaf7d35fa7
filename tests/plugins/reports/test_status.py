"""Test schedules and days in the report, without I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hibali_plugins.reports.dashboard.pages import operation_rows
from hibali_plugins.reports.status import (
    Health,
    Mark,
    Overview,
    ScheduleInfo,
    ScheduleRow,
    by_day,
    evaluate,
    failed_commands,
    headline,
    mark_of,
)
from hibali_plugins.reports.status_page import describe_cron, render
from hibali_plugins.schedules.records import Trigger
from transfers.history.operations import Operation

NOW = 1_790_000_000.0  # 2026-09-21T14:13:20Z
PLAN = ScheduleInfo("nightly", "hibali push a b:", "0 3 * * *", silence=2 * 86400.0, since=NOW - 9e6)


def firing(number: int, state: Any, **more: Any) -> Trigger:
    return Trigger(f"{number}", "nightly", f"2026-09-{number:02d}T03:00:00Z", state=state, **more)


def health(*firings: Trigger, **more: Any) -> ScheduleRow:
    return evaluate(
        ScheduleInfo(
            PLAN.name, PLAN.command, PLAN.cron, **{"silence": PLAN.silence, "since": PLAN.since, **more}
        ),
        firings,
        NOW,
    )


def test_running_and_skipped_firings_do_not_affect_health() -> None:
    good, bad = (
        firing(19, "done", exit=0),
        firing(20, "failed", exit=4, message="no login", about="x", hint="ssh x"),
    )
    running, skipped = firing(21, "running"), firing(21, "skipped", because="still-going")
    assert health(good, running).health is Health.WELL
    assert health(good, running).running
    assert health(good, skipped).health is Health.WELL
    assert health(running).health is Health.NEW
    line = health(good, bad, bad, running)
    assert line.health is Health.NEEDS_YOU
    assert line.trouble is not None
    assert (line.trouble.times, line.trouble.what, line.trouble.todo) == (2, "x: no login", "ssh x")
    assert health(good, bad, firing(21, "done", exit=0)).health is Health.WELL
    assert health(good, bad, paused=True).health is Health.PAUSED
    broken = health(firing(21, "broken"))
    assert broken.trouble is not None
    assert "never ended" in broken.trouble.what
    silent = health(firing(1, "done", exit=0))
    assert silent.trouble is not None
    assert silent.trouble.what.startswith("Nothing has fired for 20 d")


def test_every_result_has_its_mark() -> None:
    marks = {code: mark_of(firing(1, "failed", exit=code)) for code in (2, 5, 6, 10, 143)}
    assert marks == {2: Mark.FAILED, 5: Mark.LATER, 6: Mark.INCOMPLETE, 10: Mark.DONE, 143: Mark.FAILED}


def test_the_headline_summarizes_the_schedules() -> None:
    well, bad = health(firing(20, "done", exit=0)), health(firing(20, "failed", exit=1))
    paused = health(paused=True)
    assert headline(Overview(NOW)) == "No schedules yet"
    assert headline(Overview(NOW, [well] * 8)) == "All 8 schedules are well"
    assert headline(Overview(NOW, [well] * 6 + [bad] * 2)) == "2 of 8 schedules need attention"
    assert headline(Overview(NOW, [well, bad])) == "1 of 2 schedules needs attention"
    assert headline(Overview(NOW, [well, well, paused])) == "2 of 3 schedules are well, 1 paused"
    assert headline(Overview(NOW, [bad])) == "The only schedule needs attention"


def operation(number: int, **more: Any) -> Operation:
    fields = {
        "touched": NOW,
        "receipt": {"exit": 0, "files_moved": 1, "bytes_moved": 10, "seconds": 2.0},
        **more,
    }
    kind = fields.pop("operation", "push")
    return Operation(f"{number}", kind, f"2026-09-21T{number:02d}:00:00Z", "a", "b:a", **fields)


def test_daily_totals_and_repeated_commands_that_succeeded_are_no_trouble() -> None:
    failed = operation(
        2, receipt={"exit": 4}, stopped={"about": "a", "message": "gone", "hint": "inspect it"}
    )
    days = by_day([operation(1), failed], NOW, 3)
    assert [day.day for day in days] == ["2026-09-19", "2026-09-20", "2026-09-21"]
    assert (days[-1].bytes, days[-1].bad, days[-1].rate) == (10, 1, 5.0)
    assert [each.todo for each in failed_commands([operation(1), failed], NOW)] == ["inspect it"]
    assert failed_commands([failed, operation(3)], NOW) == []
    assert failed_commands([operation(4, receipt=None, running=True)], NOW) == []
    unfinished = operation(4, receipt=None)
    assert "never ended" in failed_commands([unfinished], NOW)[0].what


def test_a_verification_is_not_called_a_transfer_and_counts_what_it_compared() -> None:
    receipt = {"exit": 6, "files": 9, "bytes": 90, "files_moved": 0, "files_failed": 2}
    verified = operation(1, operation="verify", receipt=receipt)
    assert [each.what for each in failed_commands([verified], NOW)] == ["2 files differ or are missing."]
    assert (verified.amount, operation(2).amount) == ((9, 90), (1, 10))
    assert operation(3, operation="rm", receipt={"exit": 0, "files_deleted": 4}).amount == (4, 0)
    failing = firing(21, "failed", exit=6, amounts={"files_failed": 2})
    for command, words in (
        ("verify", "2 files differ or are missing."),
        ("push", "2 files could not be transferred."),
    ):
        trouble = evaluate(
            ScheduleInfo("s", f"hibali {command} a b:a", "5 * * * *", since=NOW), [failing], NOW
        ).trouble
        assert trouble is not None
        assert trouble.what == words


def test_a_declined_question_is_no_failure() -> None:
    declined = operation(1, stopped={"code": "unconfirmed"}, receipt={"exit": 8})
    refused = operation(2, stopped={"code": "too-many-deletions"}, receipt={"exit": 8})
    assert len(failed_commands([declined, refused], NOW)) == 1
    assert failed_commands([declined], NOW) == []
    [row] = operation_rows([declined])
    assert (row["kind"], row["result"]) == ("cancelled", "not started")


@pytest.mark.parametrize("code", [2, 3])
def test_a_mistyped_command_is_a_failure_only_in_a_schedule(code: int) -> None:
    stopped = {"code": "no-such-source", "about": "a", "message": "m", "hint": "h", "exit": code}
    typed = operation(1, stopped=stopped, receipt={"exit": code, "files_moved": 0})
    scheduled = replace(typed, schedule="nightly")
    moved = replace(typed, receipt={"exit": code, "files_moved": 1})
    assert failed_commands([typed], NOW) == []
    assert [day.operations for day in by_day([typed], NOW, days=1)] == [0]
    assert [(day.operations, day.bad) for day in by_day([scheduled], NOW, days=1)] == [(1, 1)]
    assert len(failed_commands([moved], NOW)) == 1


def test_names_are_escaped_on_the_page() -> None:
    schedule = ScheduleInfo(
        "<b>x</b>", "hibali push '<script>alert(1)</script>' \x1b", "5 * * * *", since=NOW
    )
    page = render(
        Overview(NOW, [evaluate(schedule, [firing(20, "failed", exit=1, message="<img src=x>")], NOW)]),
        {"transfers": [], "rates": [], "timeline": None, "timeline_legend": []},
    )
    assert b"<script" not in page
    assert b"<img" not in page
    assert b"&lt;img src=x&gt;" in page
    assert b"\x1b" not in page
    assert b"every hour at 05" in page
    assert (describe_cron("0 3 * * *"), describe_cron("0 3 * * 1")) == (
        "every day at 03:00",
        "by cron 0 3 * * 1",
    )
