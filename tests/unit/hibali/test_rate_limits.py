"""Test rate limits: a server that refuses repeatedly gets a pause, and requests are counted."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali import rate_limits as refusals_module
from hibali.errors import TryLaterError
from hibali.rate_limits import ALLOWED, Refusals, note_use, pause_after, read_uses
from runs.rate_limits import rate_limited, scheduler_refusals


def of_site() -> Refusals:
    return Refusals("sites", "juwels", subject="juwels")


@given(st.integers(0, 10_000))
def test_pauses_grow_from_none_to_a_limit(times: int) -> None:
    assert 0 <= pause_after(times) <= pause_after(times + 1) <= 900
    assert (pause_after(times) == 0) == (times < ALLOWED)


@pytest.mark.usefixtures("hibali_home")
def test_requests_pause_after_several_refusals() -> None:
    for _ in range(ALLOWED - 1):
        of_site().refused("no")
        of_site().check()
    of_site().refused("no\x1b[31m")
    with pytest.raises(TryLaterError) as raised:
        of_site().check()
    assert raised.value.code == "paused"
    assert f"{ALLOWED} requests in a row" in raised.value.message
    assert "\x1b" not in raised.value.message
    of_site().answered()
    of_site().check()
    assert of_site().read().times == 0


@pytest.mark.usefixtures("hibali_home")
def test_the_pause_ends_even_if_the_clock_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(ALLOWED):
        of_site().refused("no")
    now = time.time()
    monkeypatch.setattr(refusals_module.time, "time", lambda: now + 61)
    of_site().check()
    monkeypatch.setattr(refusals_module.time, "time", lambda: now - 1e6)
    of_site().check()


def test_invalid_refusal_records_are_ignored(hibali_home: Any) -> None:
    folder = Path(hibali_home.state) / "sites" / "juwels"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    for text in ("", "[]", '{"times":"x"}', '{"times":1}', "[" * 100_000):
        (folder / "refusals.json").write_text(text)
        assert of_site().read().times == 0


@pytest.mark.usefixtures("hibali_home")
def test_only_errors_of_the_scheduler_count_as_refusals() -> None:
    for code in ("scheduler-busy", "unreachable", "scheduler-silent", "submission-unclear"):
        with pytest.raises(TryLaterError), rate_limited("juwels"):
            raise TryLaterError(code, "no")
    assert scheduler_refusals("juwels").read().times == 2
    with rate_limited("juwels"):
        pass
    assert scheduler_refusals("juwels").read().times == 0


def test_usage_is_counted_per_hour_and_deleted_after_days(
    hibali_home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 1, 2, 3, 59, 59, tzinfo=UTC)
    monkeypatch.setattr("hibali.rate_limits.now", lambda: f"{now:%Y-%m-%dT%H:%M:%S.%fZ}")
    for _ in range(3):
        note_use("sites", "juwels", request="command squeue")
    note_use("sites", "juwels", request="command sbatch", times=2)
    note_use("logins", "abc", request="login")
    folder = Path(hibali_home.state) / "sites" / "juwels" / "usage"
    [path] = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text() + '{"torn\n{"what":1,"times":1,"at":"x"}\n')
    both = [("sites", "juwels"), ("logins", "abc")]
    assert read_uses(both, now - timedelta(hours=1)) == {"command squeue": 3, "command sbatch": 2, "login": 1}
    assert not read_uses(both, now + timedelta(seconds=5))
    old = folder / (now - timedelta(days=9)).strftime("%Y-%m-%dT%H.jsonl")
    old.touch()
    path.unlink()
    note_use("sites", "juwels", request="login")
    assert not old.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_counting_never_fails(hibali_home: Any) -> None:
    Path(hibali_home.state).chmod(0o500)
    note_use("sites", "juwels", request="login")
    of_site().refused("no")
    of_site().answered()
