"""Test the interval between logins: short while a host accepts them, long after it dropped or delayed one."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.ssh import login_pace
from hibali.ssh.login_pace import LoginPace

DROPPED = "kex_exchange_identification: Connection closed by remote host"


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(login_pace, "ledger_folder", lambda *names: tmp_path.joinpath(*names[-1:]))
    (tmp_path / "host").mkdir()
    return tmp_path


def test_eight_logins_start_half_a_second_apart_and_the_ninth_a_minute_after_the_first() -> None:
    pace, starts, now = LoginPace("host", 0.5), [], 1000.0
    for _ in range(9):
        now += pace.wait_after(starts, now)
        starts.append(now)
    assert starts == [1000, 1000.5, 1001, 1001.5, 1002, 1002.5, 1003, 1003.5, 1060]


def test_an_interval_of_zero_has_no_limit() -> None:
    assert LoginPace("host", 0.0).wait_after([1000.0] * 20, 1000.0) == 0


@given(st.floats(0.01, 200), st.lists(st.floats(0, 100), max_size=20))
def test_no_minute_has_more_than_eight_logins(interval: float, gaps: list[float]) -> None:
    pace, starts, now = LoginPace("elsewhere", interval), [], 1000.0
    for gap in gaps:
        now += gap
        now += pace.wait_after(starts, now)
        starts.append(now)
    for earlier, later in itertools.pairwise(starts):
        assert later - earlier >= min(interval, login_pace._MOST_SECONDS) - 1e-6
    for earlier, later in zip(starts, starts[8:], strict=False):
        assert later - earlier >= 60 - 1e-6


def test_a_clock_that_was_set_back_blocks_nothing() -> None:
    assert LoginPace("host", 0.5).wait_after([5000.0] * 8, 1000.0) == 0


def test_a_dropped_connection_makes_the_interval_long_until_it_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace = LoginPace("host", 0.5)
    pace.failed("Permission denied (publickey).")
    assert pace.interval() == 0.5
    lengths = []
    for _ in range(6):
        pace.failed(DROPPED)
        lengths.append(round(LoginPace("host", 0.5).interval()))
    assert lengths == [10, 20, 40, 80, 120, 120]
    assert LoginPace("host", 300.0).interval() == 300.0
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3 * 86_400)
    assert round(pace.interval()) == 15
    monkeypatch.setattr(time, "time", lambda: now + 10 * 86_400)
    assert pace.interval() == 0.5


@pytest.mark.parametrize(
    ("took", "before", "slow"), [(9.0, 1.0, True), (9.0, 4.0, False), (2.0, 0.1, False), (9.0, None, False)]
)
def test_a_delayed_login_makes_the_interval_long(took: float, before: float | None, slow: bool) -> None:
    pace = LoginPace("host", 0.5)
    pace.succeeded(took, before)
    assert (pace.interval() > 5) is slow


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"seconds": "x", "at": 0}', '{"seconds": 1e999, "at": 1}']
)
def test_a_damaged_record_is_none(ledger: Path, content: str) -> None:
    (ledger / "host/pace.json").write_text(content)
    assert LoginPace("host", 0.5).interval() <= 120


def test_the_times_of_logins_are_shared_by_a_file(tmp_path: Path) -> None:
    pace, stamp = LoginPace("host", 0.5), tmp_path / "stamp"
    assert pace.read_starts(stamp) == []
    for number in range(12):
        pace.write_start(stamp, pace.read_starts(stamp), 1000.0 + number)
    assert pace.read_starts(stamp) == [1004.0 + number for number in range(8)]
    stamp.write_text("not a number")
    assert pace.read_starts(stamp) == []


def test_a_host_that_accepted_further_logins_is_known_in_later_sessions_until_it_refuses_one(
    ledger: Path,
) -> None:
    assert not LoginPace("host", 0.5).accepts_further()
    LoginPace("host", 0.5).note_further(accepted=True)
    assert LoginPace("host", 0.5).accepts_further()
    LoginPace("host", 0.5).note_further(accepted=False)
    assert not LoginPace("host", 0.5).accepts_further()
    LoginPace("host", 0.5).note_further(accepted=True)
    old = time.time() - 8 * 86_400
    os.utime(ledger / "host" / "accepts-further", (old, old))
    assert not LoginPace("host", 0.5).accepts_further()
