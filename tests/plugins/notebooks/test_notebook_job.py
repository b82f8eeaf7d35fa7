"""Test `hibali notebook`: a real Jupyter server in a job of a real Slurm, reached over the login that exists."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.services.session import REPOSITORY
from tests.support.requirements import require_prepared
from tests.support.waiting import wait_for

PYTHON = REPOSITORY / ".cache/science/bin/python"
pytestmark = pytest.mark.timeout(400)


class Notebook:
    """A running `hibali notebook`."""

    def __init__(self, bench: Bench, *words: str) -> None:
        self.bench = bench
        output = bench.folder / f"{len(list(bench.folder.glob('*.out')))}.out"
        words = ("notebook", "--site", "cluster", "@data/scans", "--program", "server", *words, "--json")
        self.process: subprocess.Popen[bytes] = bench.hibali.start(*words)
        wait_for(lambda: b'"notebook"' in output.read_bytes() or self.process.poll() is not None, 120)
        lines = [json.loads(line) for line in output.read_bytes().splitlines()]
        opened = [line for line in lines if line["kind"] == "notebook"]
        assert opened, output.with_suffix(".err").read_text()
        self.opened: dict[str, Any] = opened[0]
        link = urlsplit(self.opened["url"])
        assert link.hostname == "127.0.0.1"
        [self.token] = parse_qs(link.query)["token"]

    def ask(self, path: str, method: str = "GET", *, token: str | None = None) -> tuple[int, Any]:
        """Send a request to Jupyter's API; return the status and the answer."""
        headers = {"Authorization": f"token {self.token if token is None else token}"}
        connection = http.client.HTTPConnection("127.0.0.1", self.opened["local_port"], timeout=60)
        with closing(connection):
            connection.request(method, f"/api/{path}", headers=headers)
            answer = connection.getresponse()
            return answer.status, json.load(answer)


@pytest.fixture
def bench(hibali: Any, slurm: Any) -> Iterator[Bench]:
    """Return a cluster with Jupyter, and a folder of data."""
    require_prepared(PYTHON.parent / "jupyter-server", "science")
    made = Bench(hibali, doing("true"))
    made.add_slurm_site(slurm)
    config = hibali.home.config
    settings = made.folder / "settings"
    settings.mkdir()
    (settings / "jupyter_server_config.json").write_text('{"ServerApp": {"allow_root": true}}')
    prologue = f'prologue = [\'export PATH="{PYTHON.parent}:$PATH" JUPYTER_CONFIG_DIR="{settings}"\']\n'
    config.write_text(
        config.read_text().replace('directives = ["--mem=50"]\n', f'directives = ["--mem=200"]\n{prologue}')
        + f'[sites.cluster.roots]\ndata = "{made.folder}/data"\n'
    )
    (made.folder / "data/scans").mkdir(parents=True)
    (made.folder / "data/scans/a.txt").write_text("a")
    yield made
    for line in hibali("runs", "list", "--json").lines:
        if line["kind"] == "run":
            hibali("runs", "cancel", line["id"])


@pytest.mark.heavy
def test_the_same_command_opens_the_same_notebook_again_over_one_login(bench: Bench) -> None:
    notebook = Notebook(bench)
    status, listed = notebook.ask("contents")
    assert (status, [each["name"] for each in listed["content"]]) == (200, ["a.txt"])
    assert notebook.ask("contents", token="wrong")[0] == 403
    status, kernel = notebook.ask("kernels", "POST")
    assert status == 201
    notebook.process.send_signal(signal.SIGINT)
    assert notebook.process.wait(60) == 130
    with pytest.raises(ConnectionRefusedError):
        notebook.ask("kernels")
    again = Notebook(bench)
    assert again.opened["id"] == notebook.opened["id"]
    assert [each["id"] for each in again.ask("kernels")[1]] == [kernel["id"]]
    usage: dict[str, Any] = bench.hibali("sites", "usage", "cluster", "--json", exit=0).lines[0]
    assert usage["hour"]["logins"] == 1
    assert files_with(again.token, bench.folder) == {"0.out", "1.out", "jpserver"}
    bench.hibali("runs", "cancel", again.opened["id"], exit=0)
    assert again.process.wait(60) == 7
    new = Notebook(bench)
    assert new.opened["id"] != again.opened["id"]
    new.process.kill()


@pytest.mark.heavy
def test_where_no_login_is_kept_a_notebook_needs_one(bench: Bench) -> None:
    """For the job, for the wait, for the tunnel and all connections."""
    config = bench.hibali.home.config
    config.write_text(
        config.read_text().replace("[sites.cluster.ssh]\n", '[sites.cluster.ssh]\npersist = "no"\n')
    )
    notebook = Notebook(bench)
    assert [notebook.ask("contents")[0] for _ in range(3)] == [200] * 3
    usage: dict[str, Any] = bench.hibali("sites", "usage", "cluster", "--json", exit=0).lines[0]
    assert usage["hour"]["logins"] == 1
    notebook.process.kill()


def files_with(secret: str, folder: Path) -> set[str]:
    """Return the names of all files with a secret, up to their first "-"; only their owner may read them."""
    found = [
        Path(place) / name
        for place, _, names in os.walk(folder)
        for name in names
        if secret.encode() in (Path(place) / name).read_bytes()
    ]
    assert all(path.stat().st_mode & 0o077 == 0 for path in found if path.suffix != ".out")
    return {path.name.partition("-")[0] for path in found}


@pytest.mark.heavy
def test_a_job_without_jupyter_ends_with_its_error(bench: Bench) -> None:
    config = bench.hibali.home.config
    config.write_text(config.read_text().replace(str(PYTHON.parent), "/nowhere"))
    missing = bench.hibali("notebook", "--site", "cluster", "@data/missing", "--json", exit=3)
    assert missing.last["code"] == "no-such-place"
    failed = bench.hibali("notebook", "--site", "cluster", "--json", exit=7)
    assert failed.last["code"] == "run-failed", str(failed)
    run_id = failed.last["hint"].split()[-1]
    assert b"jupyter: not found" in bench.hibali("runs", "logs", run_id, "--stderr").out


@pytest.mark.heavy
def test_a_job_that_fails_at_once_is_not_submitted_again(hibali: Any) -> None:
    made = Bench(hibali, doing("true"))
    made.add_local_site()
    hibali.env["PATH"] = os.defpath  # without Jupyter
    for number in (1, 2):
        failed = hibali("notebook", "--site", "here", made.folder, "--json", exit=7)
        assert failed.last["code"] == "run-failed", str(failed)
        assert len(made.run_ids()) == number
