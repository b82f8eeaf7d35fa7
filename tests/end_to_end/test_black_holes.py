"""Test a path that loses large packets (an MTU black hole): commands end by the limit that the user set."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hibali.config.model import Limits, SshSettings
from hibali.errors import TryLaterError
from hibali.ssh.sessions import Login
from hibali.subprocesses import Process
from tests.services.sshd import SshServer
from tests.support.faulty_proxy import BlackHoleProxy
from tests.support.waiting import wait_for
from transfers.remote.connection import Connection
from transfers.stores.sftp.channel import Channel

SECONDS = 100.0  # of a busy machine; before, it took several minutes


@pytest.fixture
def hole(ssh_server: SshServer) -> Iterator[BlackHoleProxy]:
    proxy = BlackHoleProxy(ssh_server.port)
    yield proxy
    proxy.close()


def add_site(hibali: Any, server: SshServer, proxy: BlackHoleProxy, more: str = "") -> None:
    # a lost path is noticed in two seconds instead of sixty
    quick = ["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2"]
    command = [*server.command, *quick, "-o", f"Port={proxy.port}", "-o", f"HostKeyAlias={server.host}"]
    hibali.home.config.write_text(
        f'version = 1\n[sites.far]\nkind = "ssh"\n[sites.far.ssh]\nhost = "{server.host}"\n'
        f"command = {json.dumps(command)}\n{more}"
        '[sites.far.limits]\nlogin_interval = "0s"\nreconnect = "4s"\n'
    )
    hibali.home.config.chmod(0o600)
    (hibali.home.folder / "d").mkdir()
    (hibali.home.folder / "d/large").write_bytes(bytes(range(256)) * 20_000)


@pytest.mark.parametrize(
    "more",
    [
        "",
        pytest.param('persist = "no"\n', marks=pytest.mark.heavy),
        pytest.param('transport = "sftp"\n', marks=pytest.mark.heavy),
    ],
    ids=["agent", "no-master", "sftp"],
)
def test_a_path_that_loses_large_packets_ends_the_command_by_its_limit(
    hibali: Any, ssh_server: SshServer, hole: BlackHoleProxy, more: str
) -> None:
    add_site(hibali, ssh_server, hole, more)
    began = time.monotonic()
    error = hibali("push", "d", "far:d", "--json", exit=5, timeout=110).last
    assert time.monotonic() - began < SECONDS
    assert error["exit"] == 5, error


@pytest.mark.heavy
def test_a_path_that_loses_large_packets_later_ends_the_command_by_its_limit(
    hibali: Any, ssh_server: SshServer, hole: BlackHoleProxy
) -> None:
    hole.largest = 1 << 30
    add_site(hibali, ssh_server, hole)
    process = hibali.start("push", "d", "far:d", "--json", "--bwlimit", "400k")
    wait_for(lambda: hole.sent > 800_000)
    hole.largest = 8000
    began = time.monotonic()
    assert process.wait(110) == 5
    assert time.monotonic() - began < SECONDS


def test_a_connection_without_a_master_has_a_deadline_too(ssh_server: SshServer) -> None:
    login = Login(
        SshSettings(host=ssh_server.host, command=tuple(ssh_server.command), persist_seconds=0), Limits()
    )
    argv = login.argv("true")
    assert "ServerAliveInterval=15" in argv
    assert "ServerAliveCountMax=4" in argv


@pytest.mark.parametrize("kind", [Connection, Channel])
def test_a_program_that_neither_reads_nor_answers_is_ended(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that is full blocks the write of the agent's program, which is longer than it."""
    monkeypatch.setattr(sys.modules[kind.__module__], "_START_SECONDS", 0.5)
    program: Any = ["sleep", "60"]
    with pytest.raises(TryLaterError) as caught:
        kind(Process(program) if kind is Connection else program, "far")
    assert caught.value.code == "no-answer"
