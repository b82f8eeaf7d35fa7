"""Test which of several channels gets a chunk."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from transfers.pipeline.batches import Flow, first_through

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Channel:
    flow: Flow = field(default_factory=Flow)


def channel_of_rate(rate: float, clock: Clock, *, for_seconds: float = 4.0) -> Channel:
    """Return a channel that transferred pieces of 1 MiB at `rate` bytes per second."""
    channel = Channel(Flow(clock))
    end = clock.now + for_seconds
    channel.flow.add_in_flight(MIB)
    while clock.now < end:
        clock.now += MIB / rate
        channel.flow.add_in_flight(MIB)
        channel.flow.subtract_answered(MIB)
    channel.flow.subtract_answered(MIB)
    return channel


def test_rate_counts_only_time_with_data_in_flight() -> None:
    clock = Clock()
    channel = channel_of_rate(16 * MIB, clock)
    assert abs(channel.flow.rate - 16 * MIB) < MIB
    clock.now += 60  # idle time does not reduce the rate
    channel.flow.add_in_flight(MIB)
    clock.now += 1 / 16
    channel.flow.subtract_answered(MIB)
    assert abs(channel.flow.rate - 16 * MIB) < MIB


def test_faster_channel_gets_more_data() -> None:
    fast, slow = channel_of_rate(20 * MIB, Clock()), channel_of_rate(5 * MIB, Clock())
    bytes_of = {id(fast): 0, id(slow): 0}
    for _ in range(100):
        channel = first_through([slow, fast], MIB)
        channel.flow.add_in_flight(MIB)
        bytes_of[id(channel)] += 1
    assert 78 <= bytes_of[id(fast)] <= 82


def test_channel_of_unknown_rate_gets_data() -> None:
    known, fresh = channel_of_rate(20 * MIB, Clock()), Channel()
    known.flow.add_in_flight(MIB)
    assert first_through([known, fresh], MIB) is fresh


@given(st.lists(st.integers(0, 64 * MIB), min_size=1, max_size=9), st.integers(0, 4 * MIB))
def test_channels_of_equal_rate_get_equal_data(held: list[int], size: int) -> None:
    lines = [Channel() for _ in held]
    for channel, some in zip(lines, held, strict=True):
        channel.flow.add_in_flight(some)
    assert first_through(lines, size).flow.held == min(held)
