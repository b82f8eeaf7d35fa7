"""Test the page about runs, in a browser, too."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.run_tools import Bench, run_at
from tests.support.requirements import skip_or_fail

HOSTILE = "</title><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"


def test_a_report_is_one_page(varying: Bench) -> None:
    a = run_at(varying, "--name", HOSTILE[:60])
    varying.hibali("runs", "collect", a, "back", exit=0)
    made = varying.hibali("runs", "report", "-o", "runs.html", "--json", exit=0).last
    assert (made["format"], made["runs"]) == ("report", [a])
    page = (varying.folder / "runs.html").read_text("ascii")
    assert made["bytes"] == len(page)
    assert a in page
    assert "out.txt/same" in page
    assert "<script" not in page
    assert varying.hibali("runs", "report", "no-such-run", "-o", "x.html", exit=3)
    assert not (varying.folder / "x.html").exists()


@pytest.mark.heavy
def test_a_browser_shows_the_page_without_running_scripts(varying: Bench, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        skip_or_fail("chromium is not installed")
    run_at(varying, "--name", HOSTILE, say=HOSTILE)
    varying.hibali("runs", "report", "-o", "runs.html", exit=0)
    words = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path}/profile",
        "--virtual-time-budget=5000",
        "--window-size=1200,900",
    ]
    page = f"file://{varying.folder}/runs.html"
    shown = subprocess.run(
        [*words, "--dump-dom", page], capture_output=True, text=True, check=True, timeout=120
    )
    assert "<title>pwned" not in shown.stdout
    assert re.search(r"<title>[^<]* at here</title>", shown.stdout)
    assert "<script" not in shown.stdout
    assert "&lt;script&gt;" in shown.stdout
    assert "<rect" in shown.stdout
    picture = tmp_path / "page.png"
    subprocess.run([*words, f"--screenshot={picture}", page], capture_output=True, check=True, timeout=120)
    assert picture.stat().st_size > 10_000
