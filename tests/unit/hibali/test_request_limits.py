"""Test the limits of requests to a site: they are kept by all threads and processes together."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from hibali import request_limits
from hibali.config.model import Limits, Site
from hibali.errors import RefusedError
from hibali.request_limits import RequestLimit, request_limit
from tests.services.session import REPOSITORY

# Takes turns of ten seconds each; its waits end at once.
IN_ANOTHER_PROCESS = """
from hibali import request_limits

request_limits.wait_unless_interrupted = lambda seconds: None
limit = request_limits.RequestLimit("lab", 0.1, 0)
for _ in range(5):
    with limit.turn():
        pass
"""
INTERRUPTED = """
from hibali.request_limits import RequestLimit
from hibali.retry import interrupt_waits

interrupt_waits()
limit = RequestLimit("lab", 0.001, 0)
for _ in range(5):
    with limit.turn():
        pass
"""


class Clock:
    """A clock that only waits advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def read(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def times(self, *limits: RequestLimit, urgent: bool = False) -> list[float]:
        """Return when one request of each limit is sent, in this order, from now on."""
        began, found = self.now, []
        for limit in limits:
            with limit.turn(urgent=urgent):
                found.append(self.now - began)
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    made = Clock()
    monkeypatch.setattr(request_limits, "monotonic", made.read)
    monkeypatch.setattr(request_limits, "wait_unless_interrupted", made.wait)
    monkeypatch.setattr(request_limits, "control_folder", lambda: tmp_path)
    return made


def test_requests_are_an_interval_apart(clock: Clock) -> None:
    limit = RequestLimit("lab", 4, 0)
    assert clock.times(*[limit] * 4) == [0.0, 0.25, 0.5, 0.75]
    clock.now += 100
    assert clock.times(*[limit] * 3) == [0.0, 0.25, 0.5], "what was not used is not saved up"


def test_without_a_limit_nothing_waits(clock: Clock, tmp_path: Path) -> None:
    assert clock.times(*[RequestLimit("lab", 0, 0)] * 3) == [0.0, 0.0, 0.0]
    assert list(tmp_path.iterdir()) == []


def test_processes_share_the_limit_of_a_site(clock: Clock) -> None:
    one, another, elsewhere = RequestLimit("lab", 2, 0), RequestLimit("lab", 2, 0), RequestLimit("x", 2, 0)
    assert clock.times(one, another, another, one) == [0.0, 0.5, 1.0, 1.5]
    assert clock.times(elsewhere) == [0.0]


def test_turns_of_another_process_are_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    waits: list[float] = []
    monkeypatch.setattr(request_limits, "wait_unless_interrupted", waits.append)
    subprocess.run([sys.executable, "-c", IN_ANOTHER_PROCESS], cwd=REPOSITORY, timeout=60, check=True)
    with RequestLimit("lab", 0.1, 0).turn():
        pass
    assert 0 < waits[0] <= 50


def test_a_time_from_before_a_reboot_is_ignored(clock: Clock) -> None:
    limit = RequestLimit("lab", 1, 0)
    clock.times(limit)
    clock.now = 5.0
    assert clock.times(limit, limit) == [0.0, 1.0]


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 8])
def test_a_damaged_file_is_replaced(clock: Clock, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lab.requests").write_bytes(content)
    assert clock.times(*[RequestLimit("lab", 1, 0)] * 2) == [0.0, 1.0]


def test_without_a_folder_a_process_keeps_the_limit_alone(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Path:
        raise RefusedError("not-private", "others can write to it")

    monkeypatch.setattr(request_limits, "control_folder", refuse)
    assert clock.times(*[RequestLimit("lab", 1, 0)] * 3) == [0.0, 1.0, 2.0]


def test_as_many_requests_as_allowed_are_sent_at_a_time() -> None:
    limit, together = RequestLimit("lab", 0, 3), threading.Barrier(3)
    guard, under_way, most = threading.Lock(), 0, 0

    def send(_: int) -> None:
        nonlocal under_way, most
        with limit.turn():
            with guard:
                under_way += 1
                most = max(most, under_way)
            together.wait(60)  # only three at a time can pass it
            with guard:
                under_way -= 1

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(send, range(12)))
    assert most == 3


def test_the_renewal_of_a_lock_needs_no_place_but_its_time(clock: Clock) -> None:
    limit = RequestLimit("lab", 2, 1)
    with ExitStack() as stack:
        stack.enter_context(limit.turn())
        assert clock.times(limit, limit, urgent=True) == [0.5, 1.0]
    assert clock.times(limit) == [0.5], "it counts"


def test_after_an_interruption_nothing_waits(tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=REPOSITORY, env=env, timeout=60, check=True)


def test_all_stores_of_a_site_in_a_process_have_the_same_limit() -> None:
    sites = [
        Site("lab", "s3", limits=Limits(requests=5, connections=connections)) for connections in (1, 1, 2)
    ]
    first, again, changed = map(request_limit, sites)
    assert first is again
    assert (first.connections, changed.connections) == (1, 2)
