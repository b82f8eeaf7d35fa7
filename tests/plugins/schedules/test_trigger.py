"""Test when a schedule is due, whether it runs now, and when it is retried."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from hibali.errors import UsageError
from hibali_plugins.schedules.schedule import read_expression
from hibali_plugins.schedules.trigger import decide, jitter_of, pause_before_retry
from tests.support.requirements import skip_or_fail

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN)


@pytest.mark.parametrize(
    ("text", "moment", "before", "after"),
    [
        ("0 3 * * *", "2026-01-10T03:00:00", "2026-01-10T03:00", "2026-01-11T03:00"),
        ("*/15 9-17 * * mon-fri", "2026-01-09T18:00:00", "2026-01-09T17:45", "2026-01-12T09:00"),
        ("@monthly", "2026-01-10T00:00:00", "2026-01-01T00:00", "2026-02-01T00:00"),
        # either day matches, unless one of the fields begins with a star
        ("0 0 13 * fri", "2026-02-10T00:00:00", "2026-02-06T00:00", "2026-02-13T00:00"),
        # 02:30 does not exist on 29 March 2026, and exists twice on 25 October
        ("30 2 * * *", "2026-03-29T12:00:00", "2026-03-29T03:00", "2026-03-30T02:30"),
        ("30 2 * * *", "2026-10-25T12:00:00", "2026-10-25T02:30", "2026-10-26T02:30"),
    ],
)
def test_due_times_before_and_after_a_moment(text: str, moment: str, before: str, after: str) -> None:
    expression = read_expression(text)
    assert expression.until(at(moment), BERLIN) == at(before).astimezone(UTC)
    assert expression.after(at(moment), BERLIN) == at(after).astimezone(UTC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "0 0 31 2 *",
        "@reboot",
        "0 0 L * *",
        "0 0 * * 1#2",
        "0\n3 * * * x",
        "%s 3 * * *",
    ],
)
def test_invalid_cron_expressions_are_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        read_expression(text)


def test_conversion_to_systemd_calendars() -> None:
    assert read_expression("0 3 * * *").on_calendar() == ["*-*-* 03:00:00"]
    assert read_expression("*/30 1 * * 1-5").on_calendar() == ["Mon,Tue,Wed,Thu,Fri *-*-* 01:00,30:00"]
    assert read_expression("5 4 13 * 5").on_calendar() == ["*-*-13 04:05:00", "Fri *-*-* 04:05:00"]


@pytest.mark.parametrize(
    "text", ["0 3 * * *", "*/20 1,2 * * 1-5", "5 4 13 * 5", "0 0 29 2 *", "59 23 * 2-3 7", "0 6 */10 * *"]
)
def test_systemd_agrees_on_the_due_times(text: str) -> None:
    if shutil.which("systemd-analyze") is None:
        skip_or_fail("systemd-analyze is missing")
    moment = datetime(2026, 1, 10, 12, tzinfo=UTC)
    expression = read_expression(text)
    words = [
        "systemd-analyze",
        "calendar",
        f"--base-time={moment:%Y-%m-%d %H:%M:%S} UTC",
        *expression.on_calendar(),
    ]
    output = subprocess.run(
        words, check=True, capture_output=True, env={**os.environ, "TZ": "UTC"}
    ).stdout.decode()
    nexts = re.findall(r"Next elapse: \w+ (\S+ \S+) UTC", output)
    assert min(nexts) == f"{expression.after(moment, UTC):%Y-%m-%d %H:%M:%S}"


def test_decisions_at_a_moment() -> None:
    nightly = read_expression("0 3 * * *")
    yesterday, today = at("2026-01-09T03:00:00"), at("2026-01-10T03:00:00")

    def now(
        text: str, handled: datetime = yesterday, *, make_up: bool = False, only_missed: bool = False
    ) -> str:
        moment = at(f"2026-01-10T{text}")
        found = decide(nightly, moment, BERLIN, handled=handled, make_up=make_up, only_missed=only_missed)
        return "made up" if found.made_up else found.action

    assert now("03:00:00.5") == "run"
    assert now("02:59:59") == "run"  # the clock was changed
    assert now("02:58:00") == "nothing"
    assert now("03:00:01", today) == "nothing"
    assert now("03:00:01", only_missed=True) == "nothing"
    assert now("08:43:00") == "missed"
    assert now("08:43:00", make_up=True, only_missed=True) == "made up"
    assert now("08:43:00", today, make_up=True) == "nothing"
    lost = decide(nightly, at("2026-01-20T03:00:01"), BERLIN, handled=yesterday, make_up=False)
    assert (lost.action, lost.missed) == ("run", 10)


def test_pauses_grow_and_end_with_the_window() -> None:
    pauses, elapsed = [], 0.0
    while (pause := pause_before_retry(len(pauses) + 1, elapsed, 3600.0)) is not None:
        pauses.append(pause)
        elapsed += pause
    assert pauses == [60, 120, 240, 480, 900, 900, 900]
    assert pause_before_retry(1, 0.0, 20.0) == 1.0


def test_jitter_is_deterministic() -> None:
    found = {jitter_of(1200, "nightly", "host", str(day)) for day in range(50)}
    assert len(found) == 50
    assert all(0 <= each < 1200 for each in found)
    assert jitter_of(1200, "nightly", "host", "1") in found
    assert read_expression("0 3 * * 1").longest_gap(at("2026-01-10T00:00:00"), BERLIN) == timedelta(days=7)
