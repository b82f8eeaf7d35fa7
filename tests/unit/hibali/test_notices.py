"""Test notifications of a run's end: what commands and URLs receive, and which secrets are hidden."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hibali import request_log, subprocesses
from hibali.errors import HibaliError, NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.notices import read_target, send_run_notice
from hibali.request_log import command_text, log_line, log_request
from tests.services.serving import serve_in_thread

RUN = "20260102-030405-0a1b2c3d"
SECRET = "planted-secret"


@contextlib.contextmanager
def listening(statuses: list[int], location: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Run a server that sends these statuses in order; yield its address and the requests."""
    got: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(statuses.pop(0))
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = serve_in_thread(server)
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_url_gets_the_record_and_is_retried() -> None:
    with listening([503, 200]) as (origin, got):
        send_run_notice(read_target(f"{origin}/hooks/{SECRET}?x=1"), RUN, "FAILED", b'{"id":"x"}')
    assert got == [(f"/hooks/{SECRET}?x=1", "application/json", {"id": "x"})] * 2


@pytest.mark.parametrize(
    ("statuses", "error"), [([404], RefusedError), ([302], RefusedError), ([500] * 3, TryLaterError)]
)
def test_a_failing_url_is_reported_without_its_secret(statuses: list[int], error: type[HibaliError]) -> None:
    with listening(statuses, f"http://127.0.0.1:9/{SECRET}") as (origin, _), pytest.raises(error) as raised:
        send_run_notice(read_target(f"{origin}/{SECRET}"), RUN, "FAILED", b"{}")
    assert SECRET not in json.dumps(raised.value.to_record())
    assert raised.value.subject == origin
    assert statuses == []


@pytest.mark.parametrize(
    "url",
    [
        f"http://example.org/{SECRET}",
        f"https://user:{SECRET}@example.org/",
        f"ftp://example.org/{SECRET}",
        f"file:///{SECRET}",
        f"https:///{SECRET}",
        f"https://example.org/{SECRET} x",
        f"https://example.org:port/{SECRET}",
        f"https://[::1/{SECRET}",
    ],
)
def test_an_unsupported_url_is_rejected_without_its_secret(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_target(url)
    assert SECRET not in json.dumps(raised.value.to_record())


def test_a_command_gets_id_and_state_as_words_and_the_record_on_its_input(tmp_path: Path) -> None:
    script = tmp_path / "notify me"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{tmp_path}/words"; cat >"{tmp_path}/record"\n')
    script.chmod(0o755)
    send_run_notice(read_target(f"'{script}' '$HOME; id' -x"), RUN, "SUCCEEDED", b"{}\n")
    assert (tmp_path / "words").read_text().splitlines() == ["$HOME; id", "-x", RUN, "SUCCEEDED"]
    assert (tmp_path / "record").read_bytes() == b"{}\n"


def test_a_failing_command_is_reported_only_by_its_name() -> None:
    with pytest.raises(HibaliError) as raised:
        send_run_notice(read_target(f"sh -c 'echo {SECRET} >&2; exit 3'"), RUN, "FAILED", b"{}")
    assert SECRET not in json.dumps(raised.value.to_record())
    assert raised.value.message == "it exited with 3"
    with pytest.raises(NotFoundError):
        send_run_notice(read_target("/no/such/program"), RUN, "FAILED", b"{}")
    for text in ("", "  ", "'open"):
        with pytest.raises(UsageError):
            read_target(text)


def test_no_log_has_the_path_of_a_url_or_the_words_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(request_log, "_sinks", [lines.append])
    monkeypatch.setattr(subprocesses, "_known", set())
    programs = [lambda argv: log_line("program", command_text(argv))]
    monkeypatch.setattr(subprocesses, "_on_program", programs)
    url = f"https://host.test/hooks/{SECRET}?key=a%2Fb&page=planted"
    assert read_target(url).url == url
    log_request("POST", url, 200, 0.0)
    send_run_notice(read_target(f"sh -c ': {SECRET}'"), RUN, "FAILED", b"{}")
    assert lines[0].startswith("request  POST https://host.test***?")
    assert lines[1:] == ["program  sh"]
    assert not re.search("planted", "".join(lines))
