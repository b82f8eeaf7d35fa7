"""Test the calculations in the benchmark report: targets that it reports as met were met."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from benchmarks.picture import draw
from benchmarks.report import render
from benchmarks.samples import Amount, Bar, Measured, Sample, bar_value, is_met


def case(bars: tuple[Bar, ...] = (), **seconds: list[float | None]) -> Measured:
    """Return a case with these times in seconds for each contender and round, None for a failure; each transfers 200 MB."""
    samples = {
        name: [
            None if one is None else Sample(one, one / 2, 50_000_000 + number)
            for number, one in enumerate(rounds)
        ]
        for name, rounds in seconds.items()
    }
    return Measured("link-large-push", "push", Amount(1, 200_000_000), bars, "today", "abc", samples=samples)


def test_a_comparison_is_the_median_of_each_rounds_ratio_to_the_best_peer() -> None:
    """A slow round counts like all others."""
    bar = Bar("at most 1.05 of the faster", "hibali", 1.05, than=("rsync", "scp"))
    measured = case(hibali=[1.0, 30.0, 2.2], rsync=[2.0, 20.0, 2.0], scp=[1.0, 40.0, 9.0])
    # 1.0 / 1.0, 30 / 20, 2.2 / 2.0
    assert bar_value(bar, measured) == pytest.approx(1.1)
    assert not is_met(bar, 1.1)
    assert is_met(bar, 1.05)


def test_a_speed_ratio_is_the_time_of_the_peer_divided_by_ours() -> None:
    bar = Bar("at least 5 times rsync", "hibali", 5, at_least=True, than=("rsync",))
    value = bar_value(bar, case(hibali=[2.0, 4.0, 5.0], rsync=[10.0, 24.0, 40.0]))
    assert value == pytest.approx(6.0)
    assert value is not None
    assert is_met(bar, value)
    assert not is_met(bar, 4.99)


def test_a_rate_is_a_median_and_a_peak_is_the_maximum() -> None:
    measured = case(hibali=[2.0, 1.0, 4.0])
    assert bar_value(Bar("", "hibali", 106, at_least=True, measure="rate"), measured) == pytest.approx(100)
    assert bar_value(Bar("", "hibali", 400, measure="peak"), measured) == pytest.approx(50.000002)
    assert bar_value(Bar("", "hibali", 1, measure="cpu"), measured) == pytest.approx(1.0)


def test_rounds_with_a_failure_are_ignored_and_without_rounds_there_is_no_value() -> None:
    bar = Bar("", "hibali", 1.0, than=("rsync",))
    assert bar_value(bar, case(hibali=[None, 3.0], rsync=[1.0, 2.0])) == pytest.approx(1.5)
    assert bar_value(bar, case(hibali=[None], rsync=[1.0])) is None
    assert bar_value(bar, case(hibali=[1.0])) is None


def test_the_page_lists_targets_that_were_met_not_met_and_not_measured() -> None:
    bars = (
        Bar("faster than rsync", "hibali", 1.0, than=("rsync",)),
        Bar("half of scp", "hibali", 0.5, than=("scp",)),
        Bar("faster than s5cmd", "hibali", 1.0, than=("s5cmd",)),
    )
    measured = case(bars, hibali=[1.0], rsync=[2.0], scp=[1.0])
    measured.missing = {"s5cmd": "s5cmd is missing"}
    page = render([measured], ["s3-large-up"], {"kernel": "Linux"})
    assert "| link-large-push | faster than rsync | 0.50 | met |" in page
    assert "| link-large-push | half of scp | 1.00 | **not met** |" in page
    assert "| link-large-push | faster than s5cmd | not measured: s5cmd is missing | |" in page
    assert "| s3-large-up | | not measured: not run yet | |" in page
    assert "Quick run" not in page
    measured.scale = 0.02
    quick = render([measured], [], {})
    assert "Quick run with 0.02" in quick
    assert "0.50 | not judged |" in quick


def test_a_case_can_have_an_additional_table() -> None:
    measured = case(hibali=[1.0])
    measured.table = [["minute", "commands"], ["1", "2 squeue|x"]]
    page = render([measured], [], {})
    assert "| minute | commands |\n|---|---|\n| 1 | 2 squeue\\|x |\n" in page


def test_the_longest_bar_of_the_chart_is_the_slowest_contender() -> None:
    picture = ET.fromstring(draw([case(hibali=[1.0], rsync=[4.0], scp=[2.0])]))  # noqa: S314 - written by hibali
    bars = [float(bar.attrib["width"]) for bar in picture.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars == [120.0, 480.0, 240.0]
