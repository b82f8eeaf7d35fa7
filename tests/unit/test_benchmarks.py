"""Test the calculations in the benchmark report: targets that it reports as met were met."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.__main__ import CASES, main
from benchmarks.case import Contender, ReusedTarget, with_earlier
from benchmarks.load import measure_load, wait_for_low_load
from benchmarks.page import Page, parse
from benchmarks.picture import draw
from benchmarks.report import HEAD, section_of
from benchmarks.results import Results
from benchmarks.samples import Amount, Bar, Measured, Sample, bar_value, is_met
from benchmarks.settings import changed_settings
from benchmarks.testbed import HIBALI

MACHINE = {"machine": "2 cores", "kernel": "Linux 6.1|x"}
_DATE = "2026-11-24 18:00 UTC"


def case(bars: tuple[Bar, ...] = (), **seconds: list[float | None]) -> Measured:
    """Return a case with these times in seconds for each contender and round, None for a failure; each transfers 200 MB."""
    samples = {
        name: [
            None if one is None else Sample(one, one / 2, 50_000_000 + number)
            for number, one in enumerate(rounds)
        ]
        for name, rounds in seconds.items()
    }
    amount = Amount(1, 200_000_000)
    return Measured("link-large-push", "push", amount, bars, _DATE, "abc", load=0.25, samples=samples)


def page_of(measured: Measured, *more: str, quick: bool = False) -> str:
    """Return the page with this case, and without figures of `more` cases."""
    page = Page()
    section = section_of(measured, page.add_environment(MACHINE), quick=quick)
    page.sections[measured.name] = section
    return page.render(HEAD, [measured.name, *more])


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


def test_a_peer_that_verifies_nothing_is_given_the_time_of_one_hash() -> None:
    bar = Bar("CPU at most 1.1", "hibali", 1.1, measure="cpu", than=("s5cmd",), hashed=True)
    measured = case((bar,), hibali=[4.0, 6.0], s5cmd=[2.0, 4.0])
    assert bar_value(bar, measured) is None
    measured.hash_rates = [100_000_000, 300_000_000]
    # CPU 2.0 / (1.0 + 1.0) and 3.0 / (2.0 + 1.0)
    assert bar_value(bar, measured) == pytest.approx(1.0)
    assert "- sha256: 200 MB per CPU second\n" in page_of(measured)


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
    page = page_of(measured, "s3-large-up")
    assert f"| link-large-push | faster than rsync | 0.50 | met | {_DATE} | abc | 0.25 |" in page
    assert "| link-large-push | half of scp | 1.00 | **not met** |" in page
    assert "| link-large-push | faster than s5cmd | not measured: s5cmd is missing | |" in page
    assert "| s3-large-up | | not measured: not run yet | |" in page
    assert f"Push. {_DATE}, commit abc, load average 0.25 at the start, environment `" in page
    measured.scale = 0.25
    assert "0.50 | met, at 0.25 of the size |" in page_of(measured)
    assert "0.50 | not judged, at 0.25 of the size |" in page_of(measured, quick=True)


def test_the_page_names_the_settings_that_are_not_the_defaults() -> None:
    measured = case(hibali=[1.0])
    measured.settings = {"hibali": ["ssh.logins = 8"], "hibali, login kept": ["ssh.logins = 8"], "other": []}
    page = page_of(measured)
    assert "- hibali; hibali, login kept: not the defaults: `ssh.logins = 8`\n" in page
    assert "- other: all settings are the defaults\n" in page


def test_settings_are_compared_with_the_defaults_of_the_record() -> None:
    ssh = {"host": "far", "command": ["ssh", "-F", "x"], "logins": 8, "channels": 8, "persist": "4h"}
    table = {"kind": "ssh", "roots": {"data": "/d"}, "default_root": "data", "ssh": ssh}
    assert changed_settings("there", table) == ["ssh.logins = 8", 'ssh.persist = "4h"']
    limits = {"login_interval": "0s", "queued_jobs": 100}
    assert changed_settings("there", {**table, "ssh": {"host": "far"}, "limits": limits}) == [
        'limits.login_interval = "0s"'
    ]
    with pytest.raises(ValueError, match=r"site there: ssh\.logns: unknown key"):
        changed_settings("there", {**table, "ssh": {"host": "far", "logns": 8}})


def test_a_case_can_have_an_additional_table() -> None:
    measured = case(hibali=[1.0])
    measured.table = [["minute", "commands"], ["1", "2 squeue|x"]]
    assert "| minute | commands |\n|---|---|\n| 1 | 2 squeue\\|x |\n" in page_of(measured)


def test_a_page_that_is_read_and_written_again_is_the_same() -> None:
    measured = case((Bar("half of scp", "hibali", 0.5, than=("scp",)),), hibali=[1.0], scp=[2.0, None])
    measured.table = [["minute"], ["1"]]
    page = page_of(measured, "s3-large-up")
    assert parse(page).render(HEAD, ["link-large-push", "s3-large-up"]) == page


def test_a_refused_case_keeps_its_figures_and_names_the_load(tmp_path: Path) -> None:
    bars = (Bar("faster than rsync", "hibali", 1.0, than=("rsync",)),)
    order = ["link-large-push", "s3-large-up"]
    path = tmp_path / "RESULTS.md"
    results = Results(path, Page(), MACHINE, quick=False)
    results.add(case(bars, hibali=[1.0], rsync=[2.0]))
    results.write(order)
    before = path.read_text()

    results = Results(path, parse(before), {"machine": "another"}, quick=False)
    for name in order:
        results.refuse(name, "2026-11-25 18:00 UTC", "def", 4.371)
    results.write(order)
    after = path.read_text()
    refusal = "**Refused** on 2026-11-25 18:00 UTC, commit def: the load average was 4.37"
    assert f"## link-large-push\n\n{refusal}; the figures are older.\n\nPush. {_DATE}, commit abc" in after
    assert f"## s3-large-up\n\n{refusal}.\n" in after
    assert "| s3-large-up | | not measured: refused |" in after
    assert f"| faster than rsync | 0.50 | met | {_DATE} | abc | 0.25 |" in after
    assert "another" not in after
    assert parse(after).render(HEAD, order) == after

    results = Results(path, parse(after), MACHINE, quick=False)
    results.add(case(bars, hibali=[1.0], rsync=[2.0]))
    results.write(order[:1])
    assert path.read_text() == before.replace("| s3-large-up | | not measured: not run yet | | | | |\n", "")


def test_a_case_waits_for_a_low_load_and_no_longer_than_until_then() -> None:
    now = 0.0

    def load() -> float:
        nonlocal now
        now += 10
        return 3.0 - now / 10

    assert wait_for_low_load(90, measured=load, clock=lambda: now) == pytest.approx(1.0)
    assert now == pytest.approx(20)
    now = 0.0
    assert wait_for_low_load(10, measured=load, clock=lambda: now) == pytest.approx(2.0)


def test_the_load_is_the_number_of_processes_that_run_or_wait_for_a_disk() -> None:
    states = iter([(1, 0), (3, 1)] * 25)

    def read() -> str:
        running, blocked = next(states)
        return f"ctxt 5\nprocs_running {running}\nprocs_blocked {blocked}\nsoftirq 1 2\n"

    assert measure_load(read, sleep=lambda _: None) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("argv", "code"), [(["--help"], 0), (["--repeats", "0"], 2), (["--scale", "x"], 2), (["--nonsense"], 2)]
)
def test_help_and_a_wrong_option_run_nothing(argv: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == code


def test_cases_are_selected_by_name_or_by_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "link-large-push", "loop-s"]) == 0
    assert capsys.readouterr().out.split() == ["link-large-push", "loop-small-disk"]
    assert main(["--list"]) == 0
    assert len(capsys.readouterr().out.split()) == len(CASES)
    assert main(["nonsense"]) == 2
    assert "No case begins with 'nonsense'" in capsys.readouterr().err


def test_hibali_is_compared_with_itself_from_another_checkout(tmp_path: Path) -> None:
    target = ReusedTarget(tmp_path, Amount(1, 1))
    environment = {"HIBALI_STATE": "/state"}
    ours, peer = (
        Contender(name, lambda _: [*HIBALI, "push"], target, environment) for name in ("hibali", "rsync")
    )
    (now, before), bars = with_earlier([ours, peer], tmp_path)
    assert (now.name, before.name) == ("hibali", "hibali, before")
    assert now.argv("1")[0] == HIBALI[0]
    assert before.argv("1") == [str(tmp_path / ".venv/bin/python"), *HIBALI[1:], "push"]
    assert before.environment["HIBALI_STATE"] == "/state-before"
    assert now.warm_up, "the first run fills the target, and the state of each"
    assert before.warm_up
    assert [(bar.ours, bar.than, bar.measure) for bar in bars] == [
        ("hibali", ("hibali, before",), "seconds"),
        ("hibali", ("hibali, before",), "cpu"),
    ]


def test_amounts_are_described_in_words() -> None:
    assert Amount(1, 2 << 30).describe("file") == "one file of 2 GiB"
    assert Amount(10_000, 10_000 * 10_240).describe("object") == "10,000 objects of 10 KiB"
    assert Amount(1, 100).describe("file") == "one file of 100 bytes"
    assert all(one.describe(Amount(1, 1)) for one in CASES)


def test_the_longest_bar_of_the_chart_is_the_slowest_contender() -> None:
    section = section_of(case(hibali=[1.0], rsync=[4.0], scp=[2.0]), "abcdef")
    picture = ET.fromstring(draw([section]))  # noqa: S314 - written by hibali
    bars = [float(bar.attrib["width"]) for bar in picture.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars == [120.0, 480.0, 240.0]
