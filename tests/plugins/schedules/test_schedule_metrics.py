"""Test notices and metrics of schedules: a webhook with a secret, a Prometheus parser, and a full disk."""

from __future__ import annotations

import http.server
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.services.processes import MARK
from tests.services.serving import serve_in_thread
from tests.support.clock import half_a_day_away
from tests.support.small_filesystem import small_filesystem
from tests.support.transfers import Transfers

SECRET = "s3cret-of-the-hook"


class Hook:
    """The requests to a webhook: path, authorization and notice of each."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str | None, dict[str, Any]]] = []
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                hook.requests.append((self.path, self.headers.get("Authorization"), json.loads(content)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *words: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        serve_in_thread(self._server)

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    yield found
    found.end()


def add(there: Transfers, *words: str | Path) -> None:
    home = there.hibali.home
    marks = (f"--env={MARK}={home.env[MARK]}", f"--env=XDG_RUNTIME_DIR={home.runtime}")
    there.hibali(
        "schedule", "add", "nightly", "--cron", half_a_day_away(), "--by", "print", "--no-check", "--replace", *marks, *words, exit=0
    )  # fmt: skip


def samples(text: str) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.heavy
def test_a_webhook_gets_each_notice_once_and_the_secret_does_not_leak(
    local_there: Transfers, hook: Hook
) -> None:
    there = local_there
    there.make({b"a": b"1"})
    secret = there.folder / "secret"
    secret.write_text(SECRET + "\n")
    notify = ("schedule", "notify", "--webhook")
    shown = there.hibali(*notify, f"{hook.url}/in", "--secret-file", secret, "--test", "--json", exit=0).last
    assert shown["webhook"].endswith("/...")
    add(there, "--", "push", there.source, "there:file/")
    (there.root.parent / "file").write_bytes(b"in the way")
    for _ in range(2):
        there.hibali("schedule", "run", "nightly", exit=2)
    there.hibali(*notify, f"{hook.url}/hooks/{{secret}}", exit=0)
    add(there, "--", "push", there.source, "there:data")
    there.hibali("schedule", "run", "nightly", exit=0)
    assert [(path, login, notice["event"]) for path, login, notice in hook.requests] == [
        ("/in", f"Bearer {SECRET}", "trial"),
        ("/in", f"Bearer {SECRET}", "failed"),
        (f"/hooks/{SECRET}", None, "works-again"),
    ]
    assert hook.requests[1][2]["firing"]["exit"] == 2
    hook.end()
    failed = there.hibali("schedule", "notify", "--test", exit=6)
    assert SECRET.encode() not in failed.err
    kept = [path for path in there.hibali.home.folder.rglob("*") if path.is_file()]
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]


def test_a_schedule_that_does_not_run_is_reported_by_the_hourly_check(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"1"})
    notices = there.folder / "notices"
    there.hibali("schedule", "notify", "--command", f"tee -a {notices}", exit=0)
    add(there, "--silent-after", "10d", "--", "push", there.source, "there:data")
    there.hibali("schedule", "run", "--due", exit=0)
    assert not notices.exists()
    path = there.hibali.home.config.with_name("schedules.toml")
    path.write_text(path.read_text().replace('since = "2', 'since = "1'))
    for _ in range(2):
        there.hibali("schedule", "run", "--due", exit=0)
    assert [json.loads(line)["event"] for line in notices.read_text().splitlines()] == ["silent"]


@pytest.mark.heavy
def test_a_full_disk_leaves_the_metrics_as_they_were(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"123"})
    add(there, "--", "push", there.source, "there:data")
    textfile = there.folder / "textfile"
    with small_filesystem(textfile, "size=64k"):
        file = textfile / "hibali.prom"
        there.hibali("schedule", "metrics", "--file", file, exit=0)
        there.hibali("schedule", "run", "nightly", exit=0)
        before = file.read_text()
        found = samples(before)
        assert found["hibali_schedule_last_exit_code"] == 0
        assert found["hibali_schedule_last_files_moved"] == 1
        assert found["hibali_schedule_last_bytes_moved"] == 3
        assert file.stat().st_mode & 0o777 == 0o644  # another account, as of node_exporter, reads it
        with (textfile / "others").open("wb", buffering=0) as stream:
            try:
                while stream.write(bytes(4096)):
                    pass
            except OSError:
                pass
        ran = there.hibali("schedule", "run", "nightly", exit=0)
        assert b"metrics" in ran.err
        assert b"metrics" in there.hibali("schedule", "metrics", "--file", file, exit=6).err
        assert file.read_text() == before
        assert sorted(path.name for path in textfile.iterdir()) == ["hibali.prom", "others"]
        (textfile / "others").unlink()
        there.hibali("schedule", "run", "nightly", exit=0)
        assert samples(file.read_text())["hibali_schedule_last_files_moved"] == 0
