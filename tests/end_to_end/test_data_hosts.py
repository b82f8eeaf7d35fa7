"""Test sites with several hosts for bulk data, which share each transfer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hibali as hibali_api
from tests.services.processes import end_all
from tests.services.sshd import SshServer, on_another_machine, start_sshd
from tests.support.faulty_proxy import LosingProxy
from tests.support.trees import make_tree, many_files, read_tree
from transfers.agent.commands import find_mount
from transfers.stores import ssh

MIB = 1 << 20
RATE = 10 * MIB  # of each connection, in bytes per second
TREE = {**many_files(20, 30_000), **{b"large%d" % number: os.urandom(MIB + 1) * 9 for number in range(8)}}


@dataclass
class DataHosts:
    """A site with two hosts for bulk data, `one` and `two`, over slow connections."""

    hibali: Any
    folder: Path
    proxies: dict[str, LosingProxy]

    def transfer(self, command: str) -> Any:
        there = f"far:{self.folder}/there"
        ends = (str(self.folder / "here"), there) if command == "push" else (there, str(self.folder / "here"))
        return self.hibali(command, *ends, "--json", exit=0)

    def make(self, command: str) -> None:
        make_tree(self.folder / ("here" if command == "push" else "there"), TREE)

    @property
    def same(self) -> bool:
        return read_tree(self.folder / "here") == read_tree(self.folder / "there")


@pytest.fixture
def data_hosts(hibali: Any, tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts the hosts, the second behind `around`."""
    session = tmp_path / "hosts"
    session.mkdir()
    with ExitStack() as stack:
        stack.callback(end_all, session)

        def start(around: list[str] | None = None) -> DataHosts:
            servers = {
                "one": start_sshd(session, session / "one"),
                "two": start_sshd(session, session / "two", around=around or ()),
            }
            proxies = {
                name: LosingProxy(server.port, {}, seconds=0.001, rate=RATE)
                for name, server in servers.items()
            }
            for proxy in proxies.values():
                stack.callback(proxy.close)
            config = session / "config"
            config.write_text(
                "".join(configured(name, servers[name], proxies[name].port) for name in servers)
            )
            with hibali.home.config.open("a") as stream:
                stream.write(
                    '[sites.far]\nkind = "ssh"\n[sites.far.ssh]\nhost = "one"\ndata_hosts = ["one", "two"]\n'
                    f"command = {json.dumps(['ssh', '-F', str(config)])}\n"
                    '[sites.far.limits]\nlogin_interval = "0s"\n'
                )
            return DataHosts(hibali, tmp_path, proxies)

        yield start


def configured(name: str, server: SshServer, port: int) -> str:
    text = server.config.read_text().replace(f"Port {server.port}", f"Port {port}")
    return text.replace(f"Host {server.host}\n", f"Host {name}\n  HostKeyAlias {server.host}\n")


@pytest.mark.parametrize("command", ["push", "pull"])
def test_both_hosts_share_a_transfer(data_hosts: Any, command: str) -> None:
    site = data_hosts()
    site.make(command)
    receipt = site.transfer(command).last
    assert (receipt["files_moved"], receipt["proof_moved"], receipt["logins"]) == (28, "digest", 2)
    assert min(proxy.passed for proxy in site.proxies.values()) > MIB
    assert site.same


@pytest.mark.heavy
@pytest.mark.parametrize("command", ["push", "pull"])
def test_a_host_that_does_not_answer_is_left_out(data_hosts: Any, command: str) -> None:
    site = data_hosts()
    site.make(command)
    site.proxies["two"].down = True
    assert site.transfer(command).last["logins"] == 1
    assert site.same


def test_a_command_without_a_large_transfer_needs_one_host(data_hosts: Any) -> None:
    site = data_hosts()
    site.make("pull")
    site.hibali("ls", f"far:{site.folder}/there", exit=0)
    assert (site.proxies["one"].connections, site.proxies["two"].connections) == (1, 0)


@pytest.mark.heavy
def test_a_host_that_refuses_the_login_is_asked_once(data_hosts: Any, tmp_path: Path) -> None:
    site = data_hosts()
    (tmp_path / "hosts/two/authorized_keys").write_text("")
    site.make("push")
    assert site.transfer("push").last["logins"] == 1
    assert site.transfer("pull").last["logins"] == 0
    assert site.proxies["two"].connections == 1


@pytest.mark.heavy
@pytest.mark.skipif(os.geteuid() != 0, reason="another boot id needs root")
@pytest.mark.parametrize(
    ("command", "hidden", "reason"),
    [
        ("push", False, "only on Lustre, Spectrum Scale and CephFS several hosts write the same files"),
        ("pull", False, ""),
        ("push", True, "it does not see the same files as the first one"),
        ("pull", True, "it does not see the same files as the first one"),
    ],
)
def test_another_machine_helps_if_it_sees_the_same_files(
    data_hosts: Any, tmp_path: Path, command: str, reason: str, *, hidden: bool
) -> None:
    """Each host has its own boot id; with `hidden`, the second one has an empty folder where the first one has the files."""
    there = tmp_path / "there"
    there.mkdir()
    mounts = [("-t", "tmpfs", "none", str(there))] if hidden else []
    site = data_hosts(on_another_machine(tmp_path, *mounts))
    site.make(command)
    answer = site.transfer(command)
    assert reason in answer.err.decode()
    assert (site.proxies["two"].passed > MIB) is not bool(reason)
    assert site.same


@pytest.mark.heavy
@pytest.mark.skipif(os.geteuid() != 0, reason="another boot id needs root")
@pytest.mark.parametrize(
    "lost", [False, pytest.param(True, marks=pytest.mark.heavy)], ids=["", "one is lost"]
)
def test_machines_write_together_where_each_sees_at_once_what_another_wrote(
    data_hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    """Both are this machine in fact, whose filesystem does that; the agent of a lost one stops when the lock is taken anew."""
    mount = find_mount(Path("/proc/self/mountinfo").read_bytes(), os.fsencode(tmp_path.resolve()))
    assert mount is not None
    monkeypatch.setattr(ssh, "COHERENT", frozenset({mount.kind}))
    site = data_hosts(on_another_machine(tmp_path))
    site.make("push")
    if lost:
        site.proxies["two"].losses[0] = 8 * MIB
    receipt = hibali_api.push(tmp_path / "here", f"far:{tmp_path}/there")
    assert (receipt.files_moved, receipt.proof_moved, receipt.reconnects) == (28, "digest", int(lost))
    assert site.proxies["two"].passed > MIB
    assert site.same
    assert not (tmp_path / "there/.hibali").exists()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('data_hosts = ["one"]\ndata_host = "two"', "only one of data_host, data_hosts can be set"),
        ('data_hosts = ["-oProxyCommand=x"]', "'-oProxyCommand=x' is not a host"),
        ('data_hosts = "one"', "must be a list of strings"),
    ],
)
def test_wrong_hosts_are_refused(hibali: Any, lines: str, message: str) -> None:
    with hibali.home.config.open("a") as stream:
        stream.write(f'[sites.far]\nkind = "ssh"\n[sites.far.ssh]\nhost = "one"\n{lines}\n')
    assert message in hibali("ls", "far:x", exit=2).err.decode()
