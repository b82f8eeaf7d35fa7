"""Test that a report page is self-contained and runs no code."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hibali.events import Failed
from hibali_plugins.reports.run_page import MAX_ROWS, ReportedRun, render, timeline_rows
from runs.model import Run, State
from runs.outputs import OutputDigests
from runs.status import Span
from tests.support.runs import make_run
from tests.unit.runs.test_clean_and_adopt import forged_runs
from transfers.remote.host import RemoteHost

NOW = 1_767_323_045.0
HOSTILE = (
    "</title></style></svg><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;\x1b[31m\u202e{{}}"
)


def run(number: int = 0, **more: Any) -> Run:
    fields = {
        "id": f"20260102-030405-{number:08x}",
        "pipeline": "bet@1.0",
        "pipeline_digest": "d" * 64,
        "site": "juwels",
        "name": "",
        "scheduler": "slurm",
        "container": "bare",
        "created": "2026-01-02T03:04:05.000000Z",
        "state": State.SUCCEEDED,
    }
    return make_run(**{**fields, **more})


def reported(each: Run, began: float = NOW - 100, **more: Any) -> ReportedRun:
    spans = [
        Span(State.PREPARED, began, began + 10),
        Span(State.SUBMITTED, began + 10, began + 30),
        Span(State.RUNNING, began + 30, began + 90),
        Span(each.state, began + 90),
    ]
    fields = {
        "record": each.to_whole_record(),
        "spans": spans,
        "collected": [began + 95],
        "left": None,
        **more,
    }
    return ReportedRun(run=each, **fields)


class Page(HTMLParser):
    """Parse the page as a browser would, limited to what these tests need."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self._style = False
        self.feed(page.decode("ascii"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._style = tag == "style"
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_data(self, data: str) -> None:
        if not self._style:
            self.text += data


def test_the_page_has_a_timeline_an_overview_and_each_run() -> None:
    one = run(
        1, cpu_seconds=12.5, memory_bytes=3_000_000_000, exit_code=0, version="1", image="sha256:" + "e" * 64
    )
    two = run(2, state=State.FAILED, exit_code=3, reason="ended by the scheduler: TIMEOUT")
    page = Page(render([reported(one), reported(two)], NOW))
    assert page.tags.count("section") == 2
    assert ("section", "id", one.id) in page.attributes
    assert ("a", "href", f"#{one.id}") in page.attributes
    for words in (
        "2 runs",
        "1 succeeded",
        "1 failed",
        "12 s",
        "3.0 GB",
        "ended by the scheduler: TIMEOUT",
        "1 min",
    ):
        assert words in page.text, words
    identifiers = {value for _, name, value in page.attributes if name == "id"}
    links = {value for _, name, value in page.attributes if name == "href"}
    assert {link.removeprefix("#") for link in links} <= identifiers


def test_the_page_loads_nothing_and_has_no_scripts() -> None:
    page = render([reported(run())], NOW)
    text = page.decode("ascii")
    assert "default-src 'none'" in text
    assert not re.search(
        r"<script|<img|<link|<iframe|javascript:|url\(|@import|\bon[a-z]+=|src=|style=", text
    )
    assert not re.search(r"(href|src)=\"(?!#)", text)


@pytest.mark.parametrize("state", list(State))
def test_hostile_text_is_escaped(state: State) -> None:
    each = run(
        3,
        state=state,
        **dict.fromkeys(
            ("pipeline", "site", "name", "scheduler", "container", "job", "native", "reason", "host"), HOSTILE
        ),
        folder=HOSTILE.encode() + b"\xff",
        collected=(HOSTILE,),
        receipts=(HOSTILE,),
        image=HOSTILE,
        version=HOSTILE,
        invocation={HOSTILE: HOSTILE, "list": [HOSTILE, 1, None]},
        inputs=({"id": HOSTILE, "name": HOSTILE, "location": HOSTILE, "identity": HOSTILE},),
    )
    left = OutputDigests({HOSTILE.encode(): ("e" * 64, 1)}, [Failed(b"x", "y", HOSTILE)])
    page = render([reported(each, left=left)], NOW)
    seen = Page(page)
    assert not {"script", "img"} & set(seen.tags)
    assert not [name for _, name, _ in seen.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in seen.text
    assert b"\x1b" not in page
    assert "\u202e" not in seen.text
    assert "&#8238;" not in page.decode("ascii")


def test_distant_runs_have_their_own_time_axis() -> None:
    near, host = reported(run(1)), reported(run(2), began=NOW - 10_000_000)
    assert "from its own start" in Page(render([host, near], NOW)).text
    assert "from its own start" not in Page(render([near, reported(run(3), began=NOW - 160)], NOW)).text


def test_sweeps_are_drawn_and_large_numbers_of_runs_are_limited() -> None:
    def sweep(count: int) -> ReportedRun:
        each = run(count)
        times = {"started": "2026-01-02T03:03:20Z", "ended": "2026-01-02T03:04:00Z", "exit_code": 0}
        tasks = [{"state": "SUCCEEDED", **times}, *[{"state": "WAITING"}] * (count - 1)]
        return reported(each, record={**each.to_whole_record(), "tasks": tasks})

    assert [line.label for line in timeline_rows([sweep(5)], NOW)] == [sweep(5).run.id, "task 1"]
    page = Page(render([sweep(1000)], NOW))
    assert page.tags.count("rect") > 1000
    assert "1000 tasks" in page.text
    many = [reported(run(number)) for number in range(MAX_ROWS + 100)]
    assert len(timeline_rows(many, NOW)) == MAX_ROWS
    assert f"The latest {MAX_ROWS} of {MAX_ROWS + 100} runs" in Page(render(many, NOW)).text


def test_a_page_without_runs() -> None:
    assert "There are no runs." in Page(render([], NOW)).text
    assert render([reported(run(), spans=[])], NOW)


@pytest.mark.heavy
def test_a_run_with_a_forged_manifest_is_shown(host: RemoteHost, tmp_path: Path) -> None:
    for run in forged_runs(host, tmp_path):
        spans = [Span(State.PREPARED, 0.0, 1.0), Span(run.state, 1.0)]
        assert render([ReportedRun(run, run.to_whole_record(), spans, [], None)], NOW)
