"""Test what notebooks show of receipts, plans and runs: a picture, and no code of a hostile name."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hibali as api
from hibali.errors import Exit
from hibali.events import Failed, Planned
from hibali_api import notebook
from hibali_plugins.reports.html import Share, place_shares, receipt_html, run_html
from runs.model import RunStatus, State, Sweep
from runs.store import RunStore
from tests.support.runs import change_run, make_run
from transfers.history.journal import Receipt
from transfers.model.entry import Entry, Kind, Verification
from transfers.planning.actions import Action, Verb

HOSTILE = "</style></svg><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;\x1b[31m\u202e{{7*7}}"
RUN = "20260102-030405-0a1b2c3d"
ALLOWED = {
    *("div", "style", "p", "strong", "span", "svg", "title", "rect", "g", "line", "text", "polygon"),
    *("ul", "li", "code"),
}


class Output(HTMLParser):
    """Parse HTML as a browser would, limited to what these tests need."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.kinds: list[str] = []
        self.feed(html)
        assert set(self.tags) <= ALLOWED
        assert "\x1b" not in html
        assert "\u202e" not in html

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") or name in {"src", "href"} for name, _ in attributes)
        if tag == "rect":
            self.kinds.append(dict(attributes).get("class") or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_receipt_has_a_bar_of_its_files_and_names_failures() -> None:
    failures = [Failed(HOSTILE.encode(), "unreadable", HOSTILE)] * 11
    receipt = Receipt(
        *("20260102-030405-0a1b2c3d", "push", HOSTILE, "juwels:data"),
        files_moved=3,
        bytes_moved=3_000_000,
        files_kept=2,
        files_failed=11,
        proof_moved=Verification.DIGEST,
        seconds=2.0,
        exit=Exit.INCOMPLETE,
        failures=failures,
    )
    shown = Output(receipt_html(receipt))
    assert [kind for kind in shown.kinds if kind in {"succeeded", "staging", "failed"}][:3] == [
        "succeeded",
        "staging",
        "failed",
    ]
    for text in ("incomplete", "3 files moved", "1.5 MB/s", "sha256 at both ends", "<script>alert(1)"):
        assert text in shown.text
    assert "and 1 more; details: hibali history show 20260102-030405-0a1b2c3d" in shown.text


def test_a_plan_lists_its_first_actions() -> None:
    actions = tuple(
        Action(Verb.COPY, Entry(f"{HOSTILE}{number}".encode(), Kind.FILE, 7), "new") for number in range(12)
    )
    plan = api.Plan("scans", HOSTILE, Planned(14, 98, 12, 84, 2, 0), actions, ((b"x", "denied"),))
    shown = Output(plan._repr_html_())
    assert shown.tags.count("li") == 10
    for text in ("84 B to move (copy: 12).", "and 2 more", "1 name could not be read", "2 files unchanged"):
        assert text in shown.text
    nothing = api.Plan("scans", "there:", Planned(0, 0, 0, 0, 0, 0), ())
    assert "Nothing would change." in Output(nothing._repr_html_()).text


@pytest.fixture
def run_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path))
    return RunStore()


def test_a_run_has_a_timeline_and_a_sweep_a_square_for_each_task(run_store: RunStore) -> None:
    fields: dict[str, Any] = {
        **dict.fromkeys(("pipeline", "pipeline_digest", "site", "name"), HOSTILE),
        "scheduler": "direct",
        "container": "bare",
        "outputs": [],
    }
    run_store.begin(RUN, "a" * 64, fields)
    for state in ("WAITING", "RUNNING"):
        run_store.note(RUN, "seen", {"state": state, "native": "", "reason": "", "host": HOSTILE})
    run = change_run(run_store.load(RUN), reason=HOSTILE, exit_code=3)
    shown = Output(run_html(run, run_store))
    assert {"staging", "running", "stripe"} <= set(shown.kinds)
    assert "exit code 3" in shown.text
    states = [State.SUCCEEDED] * 70 + [State.FAILED, State.RUNNING]
    statuses = {number: RunStatus(state) for number, state in enumerate(states, 1)}
    sweep = Sweep(statuses, rows=((),) * 72, set_of=(0,) * 72)
    squares = Output(run_html(make_run(sweep=sweep, state=State.RUNNING), run_store))
    assert squares.kinds.count("failed") == 2, "a square, and the legend"
    assert "task 72: running" in squares.text


def test_a_small_part_of_a_bar_is_visible() -> None:
    bars = list(place_shares([Share("succeeded", 10**7, "moved"), Share("failed", 1, "failed")]))
    assert bars[1].width >= 2
    assert bars[1].x + bars[1].width <= 600


def test_receipts_are_registered_with_the_kernel_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython is in another environment: tests/end_to_end/test_notebook.py executes a real notebook."""
    known: dict[type, Any] = {}
    formatter = SimpleNamespace(formatters={"text/html": SimpleNamespace(for_type=known.__setitem__)})
    shell = SimpleNamespace(display_formatter=formatter, kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    notebook.show_receipts()
    assert not known, "a terminal"
    shell.kernel = object()
    notebook.show_receipts()
    assert "hibali history show 1" in known[Receipt](Receipt("1", "push", "a", "b"))
