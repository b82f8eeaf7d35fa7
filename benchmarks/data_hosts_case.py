"""Compare a transfer with one host for bulk data, and with two that share it; each has a capped link of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.case import Brief, Case, Contender, FolderTarget, PreparedCase
from benchmarks.node_network import GATEWAY, node_network
from benchmarks.samples import Bar
from benchmarks.ssh_contenders import SshTransfer
from benchmarks.testbed import Testbed
from benchmarks.trees import make_tree
from tests.services.processes import free_port, program, start
from tests.services.session import end_session
from tests.services.slurm import Node
from tests.services.sshd import SshServer, start_sshd

_MEGABITS = 100  # of each host's link, in a second
_FILES = (32, 8 << 20)  # 23 s of one link
_ONE, _TWO = "hibali, 1 data host", "hibali, 2 data hosts"


def _behind_link(session: Path, server: SshServer, node: Node) -> str:
    """Return the lines of an ssh configuration that lead to the server over the node's link."""
    inner, port, socat = free_port(), free_port(), program("socat", "socat")
    here = f"TCP-LISTEN:{inner},bind={GATEWAY},fork,reuseaddr"
    start(session, [socat, here, f"TCP:127.0.0.1:{server.port}"], session / f"{node.name}.log")
    there = f"TCP-LISTEN:{port},bind={node.address},fork,reuseaddr"
    start(session, [*node.inside, socat, there, f"TCP:{GATEWAY}:{inner}"], session / f"{node.name}-link.log")
    text = server.config.read_text().replace(f"Port {server.port}", f"Port {port}")
    text = text.replace("HostName 127.0.0.1", f"HostName {node.address}")
    return text.replace(f"Host {server.host}\n", f"Host {node.name}\n  HostKeyAlias {server.host}\n")


def _prepare(*, up: bool) -> Callable[[Testbed], contextlib.AbstractContextManager[PreparedCase]]:
    @contextlib.contextmanager
    def prepare(testbed: Testbed) -> Iterator[PreparedCase]:
        with testbed.temporary_folder("data-hosts", memory=True) as folder:
            session = folder / "session"
            session.mkdir()
            amount = make_tree(folder / "source", testbed.amount(*_FILES))
            try:
                with node_network(session, 2, _MEGABITS) as nodes:
                    config = session / "config"
                    servers = [start_sshd(session, session / node.name) for node in nodes]
                    config.write_text("".join(map(_behind_link, [session] * 2, servers, nodes)))
                    names = [node.name for node in nodes]
                    target = FolderTarget(folder / "targets", amount)
                    yield PreparedCase(amount, _contenders(testbed, config, names, target, up=up))
            finally:
                end_session(session)

    return prepare


def _contenders(
    testbed: Testbed, config: Path, names: list[str], target: FolderTarget, *, up: bool
) -> list[Contender]:
    target.root.mkdir()
    source = target.root.with_name("source")
    found = []
    for variant, hosts in (("2 data hosts", names), ("1 data host", names[:1])):
        site = f"dtn{len(hosts)}"
        root = target.root if up else source.parent
        testbed.add_site(
            site,
            f'kind = "ssh"\nroots = {{ data = "{root}" }}\ndefault_root = "data"\n[sites.{site}.ssh]\n'
            f'host = "{names[0]}"\ndata_hosts = {json.dumps(hosts)}\n'
            f"command = {json.dumps(['ssh', '-F', str(config)])}\n",
        )
        transfer = SshTransfer(testbed, config, names[0], site, source, target, pull=not up)
        found.append(transfer.hibali(variant))
    return [*found, SshTransfer(testbed, config, names[0], "", source, target, pull=not up).rsync()]


_BARS = (Bar("at least 1.8 times as fast as one of them", _TWO, 1.8, at_least=True, than=(_ONE,)),)

CASES = tuple(
    Case(
        f"data-hosts-{name}",
        f"{name}: {{files}} over ssh to two hosts with {_MEGABITS} Mbit/s each, logins included",
        _prepare(up=name == "up"),
        _BARS,
        repeats=3,
        brief=Brief(repeats=1),
    )
    for name in ("up", "down")
)
