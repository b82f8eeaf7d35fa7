"""Test the series of an operation's rate: its length is bounded, no byte is lost, and damaged ones are ignored."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.events import Carried, ignore
from hibali.ledger import ledger_folder
from transfers.history import running
from transfers.history.index import read_details
from transfers.history.journal import Recorder
from transfers.history.rates import MOST_INTERVALS, RateSeries, parse_rates


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0.01, 50), st.integers(0, 10**12)), max_size=700))
def test_the_series_is_bounded_and_no_byte_is_lost(steps: list[tuple[int, float, int]]) -> None:
    at, series, total = 100.0, RateSeries(100.0), 0
    for worker, wait, size in steps:
        at += wait
        total += size
        series.add(worker, size)
        series.sample(at)
    found = series.rates(at)
    if found is None:
        return
    assert sum(found.bytes) == total
    assert len(found.seconds) <= MOST_INTERVALS
    assert len(found.workers) <= 16
    assert found.seconds[-1] == pytest.approx(at - 100.0, abs=0.1)
    assert parse_rates(found.to_record()) == found


def test_the_bytes_of_each_worker_are_counted_apart() -> None:
    series = RateSeries(0.0)
    for second in range(1, 5):
        series.add(1, 10)
        series.add(2, second)
        series.sample(float(second))
    found = series.rates(4.2)
    assert found is not None
    assert (found.seconds, found.bytes) == ([1.0, 2.0, 3.0, 4.2], [11, 12, 13, 14])
    assert found.workers == {"1": [10, 10, 10, 10], "2": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": [1, 2]},
        {"seconds": [1, 3, 2]},
        {"seconds": [1, 2, float("inf")]},
        {"bytes": [1, 2, -3]},
        {"bytes": None},
        {"workers": {"1": [1]}},
        {"workers": []},
        {"workers": {str(number): [0, 0, 0] for number in range(99)}},
    ],
)
def test_a_damaged_series_is_none(changes: dict[str, Any]) -> None:
    record = {"seconds": [1, 2, 3], "bytes": [1, 2, 3], "workers": {"1": [0, 2, 3]}}
    assert parse_rates(record) is not None
    assert parse_rates({**record, **changes}) is None
    assert parse_rates({}) is None


def test_the_journal_has_the_rate_of_an_operation_that_took_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path))
    moment = 50.0
    monkeypatch.setattr(running.time, "monotonic", lambda: moment)
    for seconds in (0, 4):
        recorder = Recorder("push", "data", "there:data", ignore)
        with ExitStack() as stack:
            recorder.start(stack)
            for _ in range(seconds):
                moment += 1.0
                recorder.on_event(Carried(1000, 1))
                [published] = running.running_operations()
            recorder.end(None)
        found = read_details(recorder.receipt.id).rates
        assert (found is not None) == bool(seconds)
    assert found is not None
    assert (list(found.bytes), found.workers) == ([1000] * 4, {"1": [1000] * 4})
    assert published.rates is not None
    assert (ledger_folder("operations") / f"{recorder.receipt.id}.jsonl").read_text().count("rates") == 1
