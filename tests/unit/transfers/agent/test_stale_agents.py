"""Agents of lost lines are ended: only the very process, and it is known to be gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from transfers.agent import lease
from transfers.agent.lease import ELSEWHERE, ENDED, RUNNING, end_stale_agents, process_start, this_process


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that would run for long."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield started
    started.kill()
    started.wait()


def told_by(process: subprocess.Popen[bytes], **changes: Any) -> dict[str, Any]:
    """What it would tell of itself, or something else."""
    return {**this_process(), "pid": process.pid, "start": process_start(process.pid), **changes}


@pytest.fixture(params=["by a descriptor", "by its pid"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older pythons know no descriptors of processes. Nobody ends by itself here."""
    monkeypatch.setattr(lease, "_GRACE_SECONDS", 0.0)
    if request.param == "by its pid":
        monkeypatch.delattr(os, "pidfd_open", raising=False)


def test_it_is_killed_and_gone_although_nobody_reaps_it(process: subprocess.Popen[bytes]) -> None:
    assert end_stale_agents([told_by(process)]) == [ENDED]
    assert process.wait() == -signal.SIGKILL
    assert end_stale_agents([told_by(process, start="1")]) == [ENDED]


def test_a_process_that_began_at_another_time_is_another(process: subprocess.Popen[bytes]) -> None:
    assert end_stale_agents([told_by(process, start="1")]) == [ENDED]
    assert process.poll() is None


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "elsewhere"},
        {"boot": "b"},
        {"namespace": "pid:[1]"},
        {"pid": "1"},
        {"pid": -1},
        {"start": ""},
    ],
)
def test_one_that_cannot_be_seen_from_here_is_left_alone(
    process: subprocess.Popen[bytes], changes: dict[str, Any]
) -> None:
    assert end_stale_agents([told_by(process, **changes)]) == [ELSEWHERE]
    assert process.poll() is None


def test_one_that_does_not_end_is_said_to_be_there(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_ENDED_SECONDS", 0.1)
    monkeypatch.setattr(lease, "_kill", lambda _: None)
    assert end_stale_agents([told_by(process), told_by(process, start="1")]) == [RUNNING, ENDED]


def test_none_ends_itself() -> None:
    assert end_stale_agents([]) == []
    lease._kill(this_process())
