"""Test the query of sites that the dashboard makes on request: with a real run, one query at a time, and without a terminal."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hibali.subprocesses import CommandResult
from hibali_plugins.reports.dashboard import refresh
from hibali_plugins.reports.dashboard.access import COOKIE, Keys
from hibali_plugins.reports.dashboard.app import make_application
from hibali_plugins.reports.dashboard.data import LedgerReader
from hibali_plugins.reports.dashboard.refresh import Refresher
from runs.model import State
from runs.store import RunStore
from tests.end_to_end.run_tools import Bench
from tests.support.waiting import wait_for

ORIGIN = "http://127.0.0.1:8123"


@pytest.fixture
def bench(hibali: Any, monkeypatch: pytest.MonkeyPatch) -> Bench:
    for name, value in hibali.env.items():
        monkeypatch.setenv(name, value)
    return Bench(hibali)


def check_log(pages: TestClient, run_id: str, path: Path) -> None:
    """Check that a poll for a log gets each line once, at most 16 KiB, and only text."""

    def poll(address: str) -> tuple[list[str], str]:
        answer = pages.get(f"/runs/{address}")
        assert answer.status_code == 200
        lines = re.findall(r"<code[^>]*>(.*?)</code>", answer.text)
        [after] = re.findall(rf'hx-get="[^"]*/runs/({run_id}/log/stdout\?[^"]*)"', answer.text)
        return lines, after.replace("&amp;", "&")

    lines, address = poll(run_id)
    assert "counted" in lines
    assert pages.get(f"/runs/{address}").status_code == 204
    with path.open("ab") as file:
        file.write(b"<b>\x1b[31m\nhalf")
        file.flush()
        lines, address = poll(address)
        assert lines == [r"&lt;b&gt;\x1b[31m"]
        file.write(b" and half\n" + b"x" * 99 + b"\n" * 99_000)
        file.flush()
        lines, address = poll(address)
        assert "bytes left out; all: hibali runs logs" in lines[0]
        assert len(lines) <= 16 * 1024 + 1
        file.truncate(3)
    for ending in ("", "&shown=9999999"):
        assert pages.get(f"/runs/{address}{ending}").headers["hx-refresh"] == "true"
    assert pages.get(f"/runs/{run_id}/log/run.json").status_code == 404


@pytest.mark.heavy
def test_a_query_records_that_a_run_has_ended_and_reading_does_not(bench: Bench) -> None:
    bench.add_local_site()
    bench.run(bench.answers(), exit=0)
    [run_id] = RunStore().ids()
    keys = Keys(8123)
    pages = TestClient(
        make_application(LedgerReader(None), keys),  # type: ignore[arg-type]
        base_url=f"{ORIGIN}{keys.base}",
        headers={"cookie": f"{COOKIE}={keys.session}"},
    )
    exit_file = bench.folder / "work-here" / "runs" / run_id / "exit.json"
    wait_for(exit_file.exists)
    assert pages.get("/").status_code == 200
    assert not RunStore().load(run_id).state.ended
    check_log(pages, run_id, exit_file.with_name("stdout"))
    assert pages.post("/refresh").status_code == 403
    assert pages.post("/refresh", headers={"origin": "null"}).status_code == 403
    assert not RunStore().load(run_id).state.ended
    answer = pages.post("/refresh", headers={"origin": ORIGIN})
    assert answer.status_code == 200
    assert "Queried at" in answer.text
    assert RunStore().load(run_id).state is State.SUCCEEDED
    assert "hx-get" not in pages.get(f"/runs/{run_id}").text


def test_a_site_that_cannot_be_reached_is_named_as_text(bench: Bench) -> None:
    bench.add_local_site()
    bench.run(bench.answers(), exit=0)
    config = bench.hibali.home.config
    config.write_text(config.read_text().replace("[sites.here", "[sites.other"))
    [warning] = [line for line in Refresher(None).refresh() if "here" in line]
    assert json.dumps(warning).isascii()


def test_only_one_query_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait(*_: Any, **__: Any) -> CommandResult:
        begun.set()
        go_on.wait(30)
        return CommandResult(0, b"", b"a\x1b[31m\n" * 99)

    monkeypatch.setattr(refresh, "run", wait)
    refresher, found = Refresher(None), list[list[str]]()
    first = threading.Thread(target=lambda: found.append(refresher.refresh()))
    first.start()
    begun.wait(30)
    assert refresher.refresh() == ["Another query is running; its results will appear here."]
    go_on.set()
    first.join(30)
    assert found[0][1:] == refresher.refresh()[1:]
    assert found[0][0].startswith("Queried at ")
    assert found[0][1:9] == [r"a\x1b[31m"] * 8
    assert found[0][9:] == ["… 91 more lines; all: hibali status --update"]


@pytest.mark.parametrize(
    ("script", "outcome"), [("kill -9 $$", "was killed by signal 9"), ("exit 6", "ended with exit code 6")]
)
def test_a_query_that_failed_in_silence_is_no_success(
    monkeypatch: pytest.MonkeyPatch, script: str, outcome: str
) -> None:
    monkeypatch.setattr(refresh, "hibali_argv", lambda: ["sh", "-c", script])
    [line] = Refresher(None).refresh()
    assert line.startswith(f"The query {outcome} at ")
    assert line.endswith(": hibali status --update")
