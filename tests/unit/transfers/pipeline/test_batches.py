"""Test which of several channels gets a chunk, and what a message says about an item."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfers.agent.writing import unpack_item
from transfers.model.entry import Entry, Kind
from transfers.model.units import Item
from transfers.pipeline.batches import Flow, Jobs, first_through, item_header

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


def test_agent_fills_in_what_the_header_of_a_plain_file_leaves_out() -> None:
    plain = Entry(b"a/b", Kind.FILE, 3, 7, 0o644)
    full = plain._replace(link=b"to", etag="tag", same_as=b"first", size=1 << 20, allocated=0)
    old = plain._replace(mode=0o600, ctime_ns=9, inode=5)
    item = Item(2, full, old, clear=True, exact=True, permissions=0o640, attributes=b"x")
    common = {"path": b"a/b", "mtime_ns": 7, "mode": 0o644}
    assert unpack_item(item_header(Item(1, plain))) == {
        **common, "number": 1, "kind": "f", "size": 3, "link": b"", "same_as": b"", "tag": "", "clear": False,
        "expect": None, "sparse": False, "permissions": None, "attributes": None, "old_mode": None,
    }  # fmt: skip
    assert unpack_item(item_header(item)) == {
        **common, "number": 2, "kind": "h", "size": 1 << 20, "link": b"to", "same_as": b"first", "tag": "tag", "clear": True,
        "expect": ["f", 3, 7, 9, 5], "sparse": True, "permissions": 0o640, "attributes": b"x", "old_mode": 0o600,
    }  # fmt: skip


def test_results_before_the_failure_of_a_job_are_yielded() -> None:
    with ThreadPoolExecutor(1) as pool:
        jobs: Jobs[int] = Jobs(pool, most_jobs=2, most_bytes=1)
        found: list[int] = []

        def feed() -> None:
            for number in range(3):
                jobs.submit(1, jobs.report, number)
            jobs.submit(1, pytest.fail, "a job fails")

        def collect() -> None:
            for results in jobs.run(feed):
                found.extend(results)

        with pytest.raises(pytest.fail.Exception, match="a job fails"):
            collect()
    assert found == [0, 1, 2]
