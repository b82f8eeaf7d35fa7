"""Test the status report: its headline, its independence of sites, and its page of two months in a browser."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import browser
from tests.support.ledger_generator import DAYS, SCHEDULES, LedgerGenerator
from tests.support.small_filesystem import small_filesystem
from tests.support.transfers import Transfers

DRAW = "HIBALI_PICTURES" in os.environ  # HIBALI_PICTURES=1 redraws the pictures of docs/
PICTURES = Path(__file__).resolve().parents[3] / "docs" / "pictures"


def test_the_report_shows_failures_and_survives_a_full_disk(local_there: Transfers) -> None:
    hibali = local_there.hibali
    empty = hibali("report", "--json", exit=0).last
    assert (empty["headline"], empty["troubles"], empty["path"]) == ("No schedules yet", [], None)
    local_there.make({b"a": b"1"})
    local_there.push()
    strange = "</title><script>document.title='x'</script>\x1b[31m"
    hibali("push", "mistyped", "there:data", exit=3)
    (local_there.folder / strange).mkdir(parents=True)
    hibali("push", "--delete", strange, "there:data", cwd=local_there.folder, exit=8)
    report = hibali("report", "--json", exit=0).last
    assert (report["operations"], sum(day["files"] for day in report["days"])) == (2, 1)
    [trouble] = report["troubles"]
    assert strange in trouble["about"]
    shown = hibali("report", exit=0).out
    assert b"Fix: " in shown
    assert b"\x1b" not in shown

    page = local_there.folder / "small" / "index.html"
    with small_filesystem(page.parent, "size=64k"):
        written = hibali("report", "-o", page.parent, "--json", exit=0).last
        assert (written["path"], written["bytes"]) == (str(page), page.stat().st_size)
        before = page.read_bytes()
        assert b"<script" not in before
        (page.parent / "full").write_bytes(bytes(64 * 1024 - len(before) // 4096 * 4096 - 4096))
        hibali("report", "-o", page, exit=6)
        assert page.read_bytes() == before
        assert sorted(path.name for path in page.parent.iterdir()) == ["full", "index.html"]


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_the_report_shows_two_months_of_eight_schedules_on_one_page(hibali: Any, tmp_path: Path) -> None:
    made = LedgerGenerator(hibali).make()
    assert (made.firings, made.runs) == (DAYS * sum(SCHEDULES.values()), 3000)
    times = []
    for _ in range(3):
        began = time.monotonic()
        hibali("report", "-o", "report.html", exit=0)
        times.append(round(time.monotonic() - began, 2))
        print(f"{made}: report in {times[-1]} s")
    report = hibali("report", "--json", exit=0).last
    assert report["headline"] == "2 of 8 schedules need attention"
    assert [each["about"] for each in report["troubles"][:2]] == ["mri-scans", "to-partner"]
    page = hibali.home.folder / "report.html"
    assert page.stat().st_size < 1_000_000
    with browser(tmp_path / "profile") as shown:
        for name, width, dark in (
            ("wide", 1600, False),
            ("tablet", 800, False),
            ("phone", 380, False),
            ("dark", 1600, True),
        ):
            shown.open(page, width=width, dark=dark)
            assert shown.evaluate("document.title") == report["headline"]
            strips = shown.evaluate(
                "[...document.querySelectorAll('.strip rect')].filter(e => e.getBoundingClientRect().width > 2).length"
            )
            assert strips == 8 * 30
            bars = "[...document.querySelectorAll('.days .bar')].filter(e => e.getBoundingClientRect().height >= 1).length"
            assert shown.evaluate(bars) >= DAYS
            assert shown.evaluate("document.documentElement.scrollWidth") <= width
            found = [
                (each["id"], [node["target"] for node in each["nodes"]])
                for each in shown.accessibility_problems()
            ]
            assert found == [], name
            shown.photograph(tmp_path / f"report-{name}.webp", height=2300)
        assert shown.said == []
        assert [each for each in shown.requested if not each.startswith("file:")] == []
    if DRAW:
        PICTURES.mkdir(exist_ok=True)
        for picture in tmp_path.glob("report-*.webp"):
            shutil.copy(picture, PICTURES)
