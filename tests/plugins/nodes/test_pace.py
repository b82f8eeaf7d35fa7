"""Test that a shard keeps its part of the limits, and that all parts together are not above them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.config.model import Limits
from hibali_plugins.nodes.program import bucket
from hibali_plugins.nodes.program.bucket import Pace
from hibali_plugins.nodes.staging import share


class Clock:
    """A clock that only waits advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(bucket, "time", made)
    return made


def times_of(clock: Clock, limit: Pace, amounts: list[float]) -> list[float]:
    """Return when each amount is moved."""
    began, found = clock.now, []
    for amount in amounts:
        limit.acquire(amount)
        found.append(clock.now - began)
    return found


def test_requests_and_bytes_are_spread(clock: Clock) -> None:
    assert times_of(clock, Pace(0.5), [1, 1, 1]) == [0.0, 2.0, 4.0]
    assert times_of(clock, Pace(100), [50, 200, 1]) == [0.0, 0.5, 2.5]
    assert times_of(clock, Pace(0), [1, 1000, 1]) == [0.0, 0.0, 0.0]


def test_what_was_not_used_is_not_saved_up(clock: Clock) -> None:
    limit = Pace(2)
    limit.acquire(1)
    clock.now += 100
    assert times_of(clock, limit, [1, 1, 1]) == [0.0, 0.5, 1.0]


@given(
    requests=st.integers(0, 10_000),
    connections=st.integers(0, 500),
    rate=st.integers(0, 10**12),
    nodes=st.integers(1, 500),
)
def test_shards_together_have_what_is_allowed(requests: int, connections: int, rate: int, nodes: int) -> None:
    count = min(nodes, connections or nodes)  # as the mover chooses
    found = share(Limits(requests=requests, connections=connections), rate, count)
    assert found.count == count
    assert found.requests * count == pytest.approx(requests)
    assert found.rate * count == pytest.approx(rate)
    assert found.connections * count <= connections
    assert bool(found.connections) == bool(connections)
