"""Test the picture of a rate over time: its steps, and its size."""

from __future__ import annotations

from hibali_plugins.reports.rate_chart import draw_rates
from transfers.history.rates import MOST_INTERVALS, Rates


def test_a_step_is_as_high_as_the_rate_and_as_wide_as_the_time() -> None:
    chart = draw_rates(Rates([1.0, 2.0, 4.0], [100, 50, 0], {}))
    [area] = chart.areas
    assert area.path == "M104.0 94.0V14.0H258.0V54.0H412.0V94.0H720.0V94.0Z"
    assert [label for _, label in chart.lines] == ["50 B/s", "100 B/s"]
    assert [label for _, label, _ in chart.labels] == ["0", "2 s", "4 s"]


def test_workers_are_drawn_if_there_are_several_and_the_picture_stays_small() -> None:
    seconds = [float(number) for number in range(1, MOST_INTERVALS + 1)]
    sizes = [10**9] * MOST_INTERVALS
    assert len(draw_rates(Rates(seconds, sizes, {"1": sizes})).areas) == 1
    chart = draw_rates(Rates(seconds, sizes, {str(number): sizes for number in range(16)}))
    assert len(chart.areas) == 17
    assert sum(len(each.path) for each in chart.areas) < 32_000
    assert max(each.base for each in chart.areas) < chart.height


def test_a_worker_that_did_nothing_has_a_flat_line() -> None:
    chart = draw_rates(Rates([1.0, 2.0, 3.0], [0, 0, 9], {"1": [0, 0, 0], "2": [0, 0, 0]}))
    assert chart.areas[1].path.count("V") == 4
