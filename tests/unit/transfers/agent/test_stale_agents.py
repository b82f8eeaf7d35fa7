"""Test ending the agents of lost connections: only the very process, and its end is confirmed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from transfers.agent import lease
from transfers.agent.lease import ELSEWHERE, ENDED, end_stale_agents, process_start, this_process
from transfers.agent.protocol import RUNNING


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that runs for long."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield started
    started.kill()
    started.wait()


def description_of(process: subprocess.Popen[bytes], **changes: Any) -> dict[str, Any]:
    """Describe the process as its agent would, with these changes."""
    return {**this_process(), "pid": process.pid, "start": process_start(process.pid), **changes}


@pytest.fixture(params=["by a descriptor", "by its pid"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test with and without pidfd, which older Pythons lack; the processes do not end by themselves."""
    monkeypatch.setattr(lease, "_GRACE_SECONDS", 0.0)
    if request.param == "by its pid":
        monkeypatch.delattr(os, "pidfd_open", raising=False)


def test_killed_zombie_counts_as_ended(process: subprocess.Popen[bytes]) -> None:
    assert end_stale_agents([description_of(process)]) == [ENDED]
    assert process.wait() == -signal.SIGKILL
    assert end_stale_agents([description_of(process, start="1")]) == [ENDED]


def test_process_with_another_start_time_is_not_killed(process: subprocess.Popen[bytes]) -> None:
    assert end_stale_agents([description_of(process, start="1")]) == [ENDED]
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
def test_process_of_another_host_is_not_killed(
    process: subprocess.Popen[bytes], changes: dict[str, Any]
) -> None:
    assert end_stale_agents([description_of(process, **changes)]) == [ELSEWHERE]
    assert process.poll() is None


def test_process_that_does_not_end_is_reported(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_ENDED_SECONDS", 0.1)
    monkeypatch.setattr(lease, "_kill", lambda _: None)
    assert end_stale_agents([description_of(process), description_of(process, start="1")]) == [RUNNING, ENDED]


def test_agent_never_kills_itself() -> None:
    assert end_stale_agents([]) == []
    lease._kill(this_process())
