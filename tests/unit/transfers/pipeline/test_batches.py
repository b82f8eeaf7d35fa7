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
class Line:
    flow: Flow = field(default_factory=Flow)


def _answered(rate: float, clock: Clock, *, for_seconds: float = 4.0) -> Line:
    """A line that brought a piece of a MiB as often as its rate, in bytes a second, lets it."""
    channel = Line(Flow(clock))
    end = clock.now + for_seconds
    channel.flow.add_in_flight(MIB)
    while clock.now < end:
        clock.now += MIB / rate
        channel.flow.add_in_flight(MIB)
        channel.flow.subtract_answered(MIB)
    channel.flow.subtract_answered(MIB)
    return channel


def test_the_rate_is_what_was_answered_while_something_was_under_way() -> None:
    clock = Clock()
    channel = _answered(16 * MIB, clock)
    assert abs(channel.flow.rate - 16 * MIB) < MIB
    clock.now += 60  # idle: no reason to think that it got slower
    channel.flow.add_in_flight(MIB)
    clock.now += 1 / 16
    channel.flow.subtract_answered(MIB)
    assert abs(channel.flow.rate - 16 * MIB) < MIB


def test_the_faster_line_gets_more() -> None:
    fast, slow = _answered(20 * MIB, Clock()), _answered(5 * MIB, Clock())
    given_to = {id(fast): 0, id(slow): 0}
    for _ in range(100):
        channel = first_through([slow, fast], MIB)
        channel.flow.add_in_flight(MIB)
        given_to[id(channel)] += 1
    assert 78 <= given_to[id(fast)] <= 82


def test_a_line_that_never_answered_yet_is_tried() -> None:
    known, fresh = _answered(20 * MIB, Clock()), Line()
    known.flow.add_in_flight(MIB)
    assert first_through([known, fresh], MIB) is fresh


@given(st.lists(st.integers(0, 64 * MIB), min_size=1, max_size=9), st.integers(0, 4 * MIB))
def test_lines_of_one_rate_are_filled_evenly(held: list[int], size: int) -> None:
    lines = [Line() for _ in held]
    for channel, some in zip(lines, held, strict=True):
        channel.flow.add_in_flight(some)
    assert first_through(lines, size).flow.held == min(held)
