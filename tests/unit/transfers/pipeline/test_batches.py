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
    line = Line(Flow(clock))
    end = clock.now + for_seconds
    line.flow.take(MIB)
    while clock.now < end:
        clock.now += MIB / rate
        line.flow.take(MIB)
        line.flow.give_back(MIB)
    line.flow.give_back(MIB)
    return line


def test_the_rate_is_what_was_answered_while_something_was_under_way() -> None:
    clock = Clock()
    line = _answered(16 * MIB, clock)
    assert abs(line.flow.rate - 16 * MIB) < MIB
    clock.now += 60  # idle: no reason to think that it got slower
    line.flow.take(MIB)
    clock.now += 1 / 16
    line.flow.give_back(MIB)
    assert abs(line.flow.rate - 16 * MIB) < MIB


def test_the_faster_line_gets_more() -> None:
    fast, slow = _answered(20 * MIB, Clock()), _answered(5 * MIB, Clock())
    given_to = {id(fast): 0, id(slow): 0}
    for _ in range(100):
        line = first_through([slow, fast], MIB)
        line.flow.take(MIB)
        given_to[id(line)] += 1
    assert 78 <= given_to[id(fast)] <= 82


def test_a_line_that_never_answered_yet_is_tried() -> None:
    known, fresh = _answered(20 * MIB, Clock()), Line()
    known.flow.take(MIB)
    assert first_through([known, fresh], MIB) is fresh


@given(st.lists(st.integers(0, 64 * MIB), min_size=1, max_size=9), st.integers(0, 4 * MIB))
def test_lines_of_one_rate_are_filled_evenly(held: list[int], size: int) -> None:
    lines = [Line() for _ in held]
    for line, some in zip(lines, held, strict=True):
        line.flow.take(some)
    assert first_through(lines, size).flow.held == min(held)
