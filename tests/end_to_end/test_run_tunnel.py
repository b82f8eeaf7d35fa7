"""Test `hibali runs tunnel`: a port at the node of a job is reached over the login that exists, until the job ends."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.services.processes import free_port
from tests.support.waiting import wait_for

SERVE = "echo started >[OUT]; exec python3 -m http.server --bind 127.0.0.1 [SAY]"


@pytest.fixture
def bench(hibali: Any, slurm: Any) -> Bench:
    """Return a cluster whose jobs serve their work folder; the node is the machine of the login."""
    made = Bench(hibali, doing(SERVE))
    made.add_slurm_site(slurm)
    return made


class OpenTunnel:
    """A running `hibali runs tunnel`."""

    def __init__(self, bench: Bench, run_id: str, *words: str) -> None:
        self._output = bench.folder / f"{len(list(bench.folder.glob('*.out')))}.out"
        self.process: subprocess.Popen[bytes] = bench.hibali.start("runs", "tunnel", run_id, *words, "--json")
        wait_for(lambda: b"\n" in self._output.read_bytes() or self.process.poll() is not None)
        self.opened = self.lines()[0]

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._output.read_text().splitlines()]

    def errors(self) -> str:
        return self._output.with_suffix(".err").read_text()

    def get(self, path: str = "out.txt") -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.opened['local_port']}/{path}") as answer:
            content: bytes = answer.read()
            return content


@pytest.fixture
def serving(bench: Bench) -> Iterator[tuple[str, int]]:
    """Return a run whose job serves, and its port."""
    port = free_port()
    run_id = bench.run(bench.answers(say=str(port)), exit=0).last["id"]
    show = ("runs", "logs", run_id, "--stderr")
    wait_for(lambda: b"Serving" in bench.hibali("runs", "logs", run_id).out or bench.hibali(*show).exit == 0)
    yield run_id, port
    bench.hibali("runs", "cancel", run_id)


def logins(bench: Bench) -> int:
    usage: dict[str, Any] = bench.hibali("sites", "usage", "cluster", "--json", exit=0).lines[0]
    return int(usage["hour"]["logins"])


def test_a_port_of_a_job_is_reached_until_the_job_ends(bench: Bench, serving: tuple[str, int]) -> None:
    run_id, port = serving
    tunnel = OpenTunnel(bench, run_id, str(port))
    assert (tunnel.opened["port"], tunnel.opened["node"]) == (port, "127.0.0.1")
    wait_for(lambda: answers(tunnel))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: tunnel.get(), range(8))) == [b"started\n"] * 8
    assert logins(bench) == 1
    local = str(tunnel.opened["local_port"])
    refused = bench.hibali("runs", "tunnel", run_id, str(port), "--local", local, "--json", exit=2)
    assert refused.last["code"] == "port-unavailable"
    bench.hibali("runs", "cancel", run_id, exit=0)
    assert tunnel.process.wait(60) == 0
    assert [line["kind"] for line in tunnel.lines()] == ["tunnel", "run"]
    assert not answers(tunnel)
    assert bench.hibali("runs", "tunnel", run_id, str(port), "--json", exit=8).last["code"] == "run-ended"


@pytest.mark.heavy
def test_where_no_login_is_kept_all_connections_share_the_one_of_the_command(
    bench: Bench, serving: tuple[str, int]
) -> None:
    """Also after the job's port refused one, and until it ends."""
    run_id, port = serving
    config = bench.hibali.home.config
    config.write_text(
        config.read_text().replace("[sites.cluster.ssh]\n", '[sites.cluster.ssh]\npersist = "no"\n')
    )
    before = logins(bench)
    closed = OpenTunnel(bench, run_id, str(free_port()))
    assert not answers(closed)
    wait_for(lambda: "Connection refused" in closed.errors())
    closed.process.send_signal(signal.SIGINT)
    assert closed.process.wait(60) == 130
    tunnel = OpenTunnel(bench, run_id, str(port))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: tunnel.get(), range(8))) == [b"started\n"] * 8
    assert logins(bench) == before + 2
    bench.hibali("runs", "cancel", run_id, exit=0)
    assert tunnel.process.wait(60) == 0
    assert not answers(tunnel)


def answers(tunnel: OpenTunnel) -> bool:
    try:
        return bool(tunnel.get())
    except OSError:
        return False


def test_an_interrupted_tunnel_leaves_nothing_open(bench: Bench, serving: tuple[str, int]) -> None:
    run_id, port = serving
    for number in (signal.SIGINT, signal.SIGKILL):
        tunnel = OpenTunnel(bench, run_id, str(port))
        wait_for(lambda tunnel=tunnel: answers(tunnel))  # type: ignore[misc]
        tunnel.process.send_signal(number)
        assert tunnel.process.wait(60) in {130, -number}
        assert not answers(tunnel)
    assert logins(bench) == 1


def test_a_tunnel_needs_a_running_job_and_a_name_of_a_machine(bench: Bench, serving: tuple[str, int]) -> None:
    run_id, port = serving
    held = bench.run(bench.answers("held.json", say="1"), "--hold", exit=0).last["id"]
    waits = bench.hibali("runs", "tunnel", held, "1", "--json", exit=5)
    assert waits.last["code"] == "not-running"
    record = next(Path(bench.folder).glob(f"work-*/**/{run_id}/started/host"))
    record.write_text("-oProxyCommand=touch /tmp/x\n")
    refused = bench.hibali("runs", "tunnel", run_id, str(port), "--json", exit=8)
    assert refused.last["code"] == "no-node"
    record.unlink()
    assert bench.hibali("runs", "tunnel", run_id, str(port), "--json", exit=5).last["code"] == "no-node"
    bench.hibali("runs", "cancel", held, exit=0)
