"""Test the progress shown to people and programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.amounts import format_duration, format_size
from hibali.events import (
    Carried,
    Carrying,
    Connected,
    Deleted,
    Ended,
    Event,
    Failed,
    Hashing,
    Listing,
    Moved,
    Planned,
    Retried,
)
from transfers.history.tally import Tally

SIZES = st.integers(0, 2**60)
NAMES = st.binary(min_size=1, max_size=3)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Planned, *[SIZES] * 6),
    st.builds(Hashing, SIZES, SIZES),
    st.builds(Carried, SIZES),
    st.builds(Carrying, NAMES, SIZES, SIZES, SIZES),
    st.builds(Moved, NAMES, st.sampled_from(["file", "folder"]), SIZES, st.none(), st.just("digest"), st.just(0)),
    st.builds(Failed, NAMES, st.just("vanished"), st.just("it went")),
    st.builds(Retried, st.just("remote"), st.just(1), st.floats(0, 100), st.just("busy")),
    st.sampled_from([Listing(), Ended(), Deleted(b"x", "file"), Connected("remote", 3, 2)]),
)  # fmt: skip


def tallied(events: list[Event], seconds: float = 1.0) -> Tally:
    tally = Tally()
    for number, event in enumerate(events):
        tally.update(event, number * seconds)
    return tally


@given(st.lists(st.tuples(EVENTS, st.floats(0, 10)), max_size=40))
def test_progress_never_exceeds_the_total(events: list[tuple[Event, float]]) -> None:
    tally, now = Tally(), 100.0
    for event, seconds in events:
        now += seconds
        tally.update(event, now)
        assert 0 <= tally.share <= 1
        assert tally.bytes <= tally.bytes_to_do
        assert (tally.seconds_left(now) or 0) >= 0
        assert all(tally.facts(now))
        assert tally.safe()


def test_the_rate_is_recent_and_falls_without_progress() -> None:
    tally = tallied([Planned(1, 10**9, 1, 10**9, 0, 0), *[Carried(10**6)] * 60])
    assert tally.rate(60) == pytest.approx(10**6, rel=0.2)
    assert tally.seconds_left(60) == pytest.approx(940, rel=0.2)
    assert (tally.rate(600) or 0) < 10**5
    assert "1 of 1 file" not in tally.facts(60)


def test_resumed_bytes_count_as_done_but_not_in_the_rate() -> None:
    events = [Carrying(b"x", 900, 900 + 10 * number, 1000) for number in range(1, 6)]
    tally = tallied(
        [Planned(1, 1000, 1, 1000, 0, 0), *[one for event in events for one in (event, Carried(10))]]
    )
    assert tally.bytes == 950
    assert (tally.rate(10) or 0) < 20
    assert [one.bytes for one in tally.current.values()] == [950]
    tally.update(Moved(b"x", "file", 1000, None, "digest", 0), 11)
    tally.update(Carrying(b"x", 900, 1000, 1000), 12)  # reported late
    assert (tally.current, tally.bytes) == ({}, 950)


def test_an_interruption_reports_the_state_of_the_target() -> None:
    assert tallied([Listing()]).safe() == "Nothing was changed at the target."
    tally = tallied([
        Planned(9, 90, 3, 30, 6, 2), Moved(b"a", "file", 10, None, "digest", 0), Carrying(b"l\n", 0, 5, 20), Ended()
    ])  # fmt: skip
    assert "at least 1 of 3 files complete and verified at the target" in tally.safe()
    assert "l\n is kept" in tally.safe()


def test_sizes_and_times_are_short() -> None:
    assert [format_size(size) for size in (0, 999, 1000, 99_949, 99_950, 999_999, 10**18)] == [
        "0 B", "999 B", "1.0 kB", "99.9 kB", "100 kB", "1.0 MB", "1000 PB"
    ]  # fmt: skip
    assert [format_duration(seconds) for seconds in (0, 59.4, 60, 200, 7500, 273_600)] == [
        "1 s", "59 s", "1 min", "3 min 20 s", "2 h 5 min", "3 d 4 h"
    ]  # fmt: skip
