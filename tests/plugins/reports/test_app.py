"""Test the pages of the dashboard: their headers, what they show, and hostile text in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hibali.config.settings import load_sites
from hibali.errors import AccessError, TryLaterError
from hibali.events import Carried, Planned
from hibali.ledger import Journal, ledger_folder
from hibali.text import path_fields
from hibali_plugins.reports.dashboard.access import COOKIE, Keys
from hibali_plugins.reports.dashboard.app import make_application
from hibali_plugins.reports.dashboard.data import LedgerReader
from runs.site_health import record_check
from runs.store import RunStore
from transfers.history.running import ProgressFile

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[31m\u202e{{7*7}}"
OPERATION, RUN, SWEEP = "20260102-030405-0a1b2c3d", "20260102-030405-00000001", "20260102-030405-00000002"
RATES = {"seconds": [1, 2, 4], "bytes": [100, 300, 0], "workers": {HOSTILE: [100, 100, 0], "2": [0, 200, 0]}}
PLAN = Planned(files=4, bytes=400, files_to_move=4, bytes_to_move=400, files_kept=0, files_to_delete=0)


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HIBALI_CONFIG", str(tmp_path / "config.toml"))
    return Keys(8123)


@pytest.fixture
def pages(keys: Keys) -> TestClient:
    """Return a client that has the cookie, as after opening the link."""
    app: Any = make_application(LedgerReader(None), keys)
    return TestClient(
        app,
        base_url=f"http://127.0.0.1:8123{keys.base}",
        headers={"cookie": f"{COOKIE}={keys.session}"},
        raise_server_exceptions=False,
    )


def write_operation() -> None:
    with Journal(ledger_folder("operations") / f"{OPERATION}.jsonl") as journal:
        at = "2026-01-02T03:04:05.000000Z"
        ends = {"source": HOSTILE, "target": f"there:{HOSTILE}"}
        journal.append({"kind": "operation", "id": OPERATION, "operation": "push", "at": at, **ends})
        failed = {"kind": "failed", **path_fields(HOSTILE.encode()), "code": HOSTILE, "message": HOSTILE}
        journal.append(failed)
        journal.append({"kind": "noted", "message": HOSTILE})
        journal.append({"kind": "rates", **RATES})
        journal.append(
            {"kind": "stopped", "code": HOSTILE, "message": HOSTILE, "about": HOSTILE, "hint": HOSTILE}
        )
        journal.append({"kind": "receipt", "exit": 6, "files_failed": 1, "mover": HOSTILE})


def write_runs() -> None:
    fields: dict[str, Any] = {
        "pipeline": HOSTILE,
        "pipeline_digest": "0" * 64,
        "site": "there",
        "scheduler": "direct",
        "container": "bare",
        "name": HOSTILE,
        "invocation": {HOSTILE: HOSTILE},
        "inputs": [{"id": HOSTILE, "name": "x", "location": HOSTILE, "identity": HOSTILE}],
        "outputs": [],
        "argv": [HOSTILE],
    }
    store = RunStore()
    store.begin(RUN, "key", fields)
    sweep = {
        "tasks": "1-3",
        "columns": [HOSTILE],
        "rows": [["a"], ["b"], ["c"]],
        "sets": [[]],
        "set_of": [0, 0, 0],
    }
    store.begin(SWEEP, "other", {**fields, "sweep": sweep})


def everything(pages: TestClient) -> dict[str, str]:
    """Return the text of every page."""
    paths = ("/", "/live", "/runs", f"/runs/{RUN}", f"/runs/{SWEEP}", "/sweeps", "/history")
    texts = {}
    for path in (*paths, f"/history/{OPERATION}", f"/history?q={'%3Cscript%3E'}", "/history?q=%22%3E%3Cb%3E"):
        answer = pages.get(path)
        assert answer.status_code == 200, path
        texts[path] = answer.text
    return texts


def test_hostile_text_is_only_text_on_every_page(pages: TestClient) -> None:
    write_operation()
    write_runs()
    progress = ProgressFile(
        {
            "id": OPERATION,
            "operation": "push",
            "source": HOSTILE,
            "target": HOSTILE,
            "began": "2026-01-02T03:04:05Z",
        },
        lambda _: None,
    )
    progress(PLAN)
    texts = everything(pages)
    shown = "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&gt;&lt;img src=x onerror=alert(1)&gt;"
    for path, text in texts.items():
        assert not re.search(r"<img|<script>|<b>|\x1b|\u202e|onerror=alert\(1\)(?!&gt;)", text), path
        assert [each for each in re.findall(r"<script[^>]*>", text) if " src=" not in each] == []
        assert not re.search(r"\son[a-z]+\s*=|\sstyle=|javascript:", re.sub(r"&lt;.*?&gt;", "", text)), path
    for path in ("/", "/live", "/runs", f"/runs/{RUN}", "/sweeps", "/history", f"/history/{OPERATION}"):
        assert shown in texts[path], path
        assert "{{7*7}}" in texts[path], path


def test_every_answer_has_the_security_headers(pages: TestClient, keys: Keys) -> None:
    for path, status in (("/", 200), ("/static/style.css", 200), ("/nothing", 404), ("/live?seen=x", 200)):
        answer = pages.get(path)
        assert answer.status_code == status
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers
    refused = pages.get("/", headers={"cookie": f"{COOKIE}=wrong"})
    assert refused.status_code == 403
    assert keys.base not in refused.text
    assert "content-security-policy" in refused.headers
    for foreign in ({"host": "attacker.example"}, {"origin": "http://attacker.example"}):
        assert pages.get("/", headers=foreign).status_code == 403
    assert pages.post("/").status_code == 405
    assert pages.head("/").status_code == 200


def test_lists_have_short_ids_and_times_with_the_whole_ones_as_titles(pages: TestClient) -> None:
    write_operation()
    write_runs()
    listed = pages.get("/history").text
    assert f'title="{OPERATION}">0a1b2c3d</a>' in listed
    assert 'title="2026-01-02T03:04:05.000000Z">2 Jan' in listed
    assert "schedule</th>" not in listed, "a column without values"
    assert f'title="{RUN}">00000001</a>' in pages.get("/runs").text


def test_the_link_leads_to_the_overview(keys: Keys) -> None:
    app: Any = make_application(LedgerReader(None), keys)
    client = TestClient(app, base_url="http://127.0.0.1:8123")
    assert client.get(f"{keys.base}/").status_code == 403
    opened = client.get(keys.url)
    [path] = re.findall(r'url=([^"]*)"', opened.text)
    assert "What runs now" in client.get(path).text
    assert client.get(keys.url).status_code == 403


def test_a_poll_gets_only_what_changed(pages: TestClient) -> None:
    first = pages.get("/live")
    assert "Nothing runs now." in first.text
    [seen] = re.findall(r"seen=([0-9a-f]+)", first.text)
    assert pages.get(f"/live?seen={seen}").status_code == 204


def test_a_running_transfer_is_shown_with_its_progress(pages: TestClient) -> None:
    fields = {"id": OPERATION, "operation": "push", "source": "data", "target": "there:data"}
    progress = ProgressFile({**fields, "began": "2026-01-02T03:04:05Z"}, lambda _: None)
    progress(PLAN)
    progress._next = 0.0
    progress(Carried(100))
    text = pages.get("/").text
    assert "push data there:data" in text
    assert '<progress max="100" value="25"' in text


def test_a_receipt_has_the_rate_over_time_and_of_each_worker(pages: TestClient) -> None:
    write_operation()
    text = pages.get(f"/history/{OPERATION}").text
    assert "Rate over time: 400 B in 4 s, 100 B/s on average, at most 300 B/s" in text
    assert "worker 2: 200 B in 4 s" in text
    assert text.count('<path class="bar"') == 3


def test_the_overview_shows_the_latest_check_of_each_site(pages: TestClient, tmp_path: Path) -> None:
    tables = [
        f'[sites.{name}]\nkind = "local"\nroots = {{ data = "/tmp" }}' for name in ("bad", "good", "new")
    ]
    config = tmp_path / "config.toml"
    config.write_text("\n".join(["version = 1", *tables]))
    config.chmod(0o600)
    sites = load_sites(None).sites
    record_check(sites["good"], "doctor", [])
    denied = AccessError("login-refused", HOSTILE, subject=HOSTILE, hint="ssh bad")
    record_check(sites["bad"], "sites check", [TryLaterError("unreachable", "no answer"), denied])
    text = pages.get("/").text
    health = re.findall(r'data-name="health"><span class="state (\w+)">([^<]*)</span>', text)
    assert health == [("failed", "failed"), ("succeeded", "healthy"), ("skipped", "not checked yet")]
    assert "bad: login-refused" in text
    assert "<code>ssh bad</code>" in text
    assert "1 other problem: hibali " in text
    assert "hibali sites check, " in text
    assert "<script>" not in text


def test_a_growing_log_says_what_it_leaves_out_and_marks_cut_lines(pages: TestClient, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('version = 1\n[sites.there]\nkind = "local"\nroots = { data = "/tmp" }\n')
    config.chmod(0o600)
    write_runs()
    RunStore().note(RUN, "staged", path_fields(bytes(tmp_path), "folder"))
    log = tmp_path / "stdout"
    log.write_text("first\n")
    address = RUN

    def poll(added: str) -> list[str]:
        nonlocal address
        with log.open("a") as file:
            file.write(added)
        answer = pages.get(f"/runs/{address}")
        if answer.status_code == 204:
            return []
        [after] = re.findall(rf'hx-get="[^"]*/runs/({RUN}/log/stdout\?[^"]*)"', answer.text)
        address = after.replace("&amp;", "&")
        return re.findall(r"<code[^>]*>(.*?)</code>", answer.text)

    def left_out(count: int) -> str:
        return f"… {count} bytes left out; all: hibali runs logs {RUN}"

    assert "first" in poll("")
    assert poll("".join(f"{number:09}\n" for number in range(2000)) + "half a") == [
        left_out(20_006 - 16384),
        "…0000362",
        *(f"{number:09}" for number in range(363, 2000)),
    ]
    assert poll(" line\n") == ["half a line"]
    assert poll("x" * 20_000 + "\nend\n") == [left_out(20_005 - 16384), "…" + "x" * (16384 - 5), "end"]
    assert poll("y" * 20_000) == [left_out(20_000 - 16384), "…" + "y" * 16384 + "…"]
    assert poll("y") == []
    assert poll("\nend\n") == ["…y", "end"]
    assert poll("z" * 16384) == ["z" * 16384 + "…"]


def test_unknown_pages_and_damaged_settings_are_pages_too(pages: TestClient, tmp_path: Path) -> None:
    for path in ("/runs/20990101-000000-00000000", "/history/x", "/history/%2e%2e", "/static/..%2fapp.py"):
        assert pages.get(path).status_code == 404
    (tmp_path / "schedules.toml").write_text("not toml <script>")
    answer = pages.get("/live")
    assert answer.status_code == 500
    assert "<script>" not in answer.text.replace('<script src="', "")


def test_history_is_searched_and_divided_into_pages(pages: TestClient) -> None:
    for number in range(60):
        name = f"20260102-0304{number:02d}-00000000"
        with Journal(ledger_folder("operations") / f"{name}.jsonl") as journal:
            at = f"2026-01-02T03:04:{number:02d}.000000Z"
            ends = {"source": f"data{number}", "target": "there:x"}
            journal.append({"kind": "operation", "id": name, "operation": "push", "at": at, **ends})
            journal.append({"kind": "receipt", "exit": number % 2 * 6})
    first = pages.get("/history").text
    assert "60 operations" in first
    assert ("data59<" in first, "data9<" in first) == (True, False)
    [older] = re.findall(r'href="(\?[^"]*)">Older', first)
    assert "data9<" in pages.get(f"/history{older}").text
    found = pages.get("/history?q=DATA5+push&result=incomplete").text
    assert sorted(set(re.findall(r"data\d+", found))) == ["data5", *(f"data{n}" for n in range(51, 60, 2))]
    assert pages.get("/history?page=99999999999999999999").status_code == 200
