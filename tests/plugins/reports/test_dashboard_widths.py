"""Test in a real browser that the pages of the dashboard fit a phone, a tablet and a wide screen, with hostile and long names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hibali.ledger import Journal, ledger_folder
from tests.plugins.reports.test_app import HOSTILE, OPERATION, PLAN, RUN, SWEEP, write_operation, write_runs
from tests.plugins.reports.test_dashboard import address_of, check_page, show, start
from tests.support.browser import browser
from tests.support.waiting import wait_for
from transfers.history.running import ProgressFile

WIDTHS = (380, 800, 1600)
PAGES = ("", "runs", "sweeps", "history", f"history/{OPERATION}", f"runs/{RUN}", f"runs/{SWEEP}")
_LONG = "a-very-long-name-that-no-browser-breaks-" * 12
_CUT = """[...document.querySelectorAll('.wide')].filter(each => each.scrollWidth > each.clientWidth + 1)
    .map(each => each.getAttribute('aria-label')).filter(name => name != 'Timeline')"""
_TALLEST = (
    "Math.max(0, ...[...document.querySelectorAll('.cards tr:has(.id)')].map(each => each.clientHeight))"
)


def write_long_operation() -> None:
    name = "20260102-030406-0a1b2c3d"
    with Journal(ledger_folder("operations") / f"{name}.jsonl") as journal:
        ends = {"source": f"there:{_LONG}", "target": _LONG}
        at = "2026-01-02T03:04:06.000000Z"
        journal.append({"kind": "operation", "id": name, "operation": "push", "at": at, **ends})
        journal.append({"kind": "receipt", "exit": 0, "files_moved": 10**9, "bytes_moved": 10**15})


def test_the_report_shows_running_and_latest_transfers_and_runs_as_text_and_pictures(
    hibali: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(hibali.home.state))
    write_operation()
    write_runs()
    fields = {"id": f"{OPERATION[:-1]}e", "operation": "push", "source": HOSTILE, "target": HOSTILE}
    progress = ProgressFile({**fields, "began": "2026-01-02T03:04:05Z"}, lambda _: None)
    progress(PLAN)
    hibali("report", "--html", "page.html", exit=0)
    progress.close()
    text = (hibali.home.folder / "page.html").read_text("ascii")
    assert "default-src 'none'; style-src 'sha256-" in text
    assert not re.search(r"<(img|script|iframe|link|b)\b|\x1b|url\(", text)
    for shown in ("Running transfers", "Rate over time: 400 B in 4 s", "worker 2: 200 B", "The latest runs"):
        assert shown in text


@pytest.mark.heavy
def test_every_page_fits_three_widths(hibali: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(hibali.home.state))
    write_operation()
    write_long_operation()
    write_runs()
    hibali("report", "--html", "page.html", exit=0)
    url = start(hibali, 0)
    with browser(tmp_path / "profile") as shown:
        show(shown, url, "Overview")
        addresses = [
            *(address_of(shown, path) for path in PAGES),
            (hibali.home.folder / "page.html").as_uri(),
        ]
        for width in WIDTHS:
            for address in addresses:
                shown.open(address, width=width)
                wait_for(lambda: shown.evaluate("document.readyState == 'complete' && document.title"))
                name = f"{address} at {width}"
                check_page(shown, name)
                assert shown.evaluate(_CUT) == [], name
                assert shown.evaluate(_TALLEST) < (500 if width < 600 else 75), name
        assert shown.evaluate("document.querySelectorAll('img').length") == 0
        assert shown.said == []
