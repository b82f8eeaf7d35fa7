"""Emulate compute nodes with their own network links: a network namespace each, behind a bridge, with a limited rate."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.services.processes import MissingPackageError, program
from tests.services.slurm import Node

_BRIDGE, _NET = "hibbr", "10.96.0"
GATEWAY = f"{_NET}.1"  # this machine, as the nodes see it
_ENTER = 'mount --bind "$0" /etc/hosts && exec "$@"'


@contextlib.contextmanager
def node_network(folder: Path, count: int, megabits: float) -> Iterator[Sequence[Node]]:
    """Create `count` nodes, each with a link of `megabits` Mbit/s in both directions; `localhost` is this machine there.

    `folder` gets their /etc/hosts.

    Raises:
        MissingPackageError: Namespaces cannot be created on this machine.
    """
    if os.geteuid() != 0:
        raise MissingPackageError("emulated nodes need root")
    ip, tc = program("ip", "iproute2"), program("tc", "iproute2")
    names = [f"hibn{number}" for number in range(1, count + 1)]
    _remove(ip, names)
    try:
        _run(ip, "link", "add", _BRIDGE, "type", "bridge")
        _run(ip, "addr", "add", f"{GATEWAY}/24", "dev", _BRIDGE)
        _run(ip, "link", "set", _BRIDGE, "up")
        yield [
            _add_node(folder, ip, tc, name, number, megabits) for number, name in enumerate(names, start=11)
        ]
    finally:
        _remove(ip, names)


def _add_node(folder: Path, ip: str, tc: str, name: str, number: int, megabits: float) -> Node:
    address, outer, inner = f"{_NET}.{number}", f"{name}o", f"{name}i"
    _run(ip, "netns", "add", name)
    _run(ip, "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
    _run(ip, "link", "set", outer, "master", _BRIDGE, "up")
    inside = (ip, "netns", "exec", name)
    _run(ip, "-n", name, "link", "set", "lo", "up")
    _run(ip, "-n", name, "addr", "add", f"{address}/24", "dev", inner)
    _run(ip, "-n", name, "link", "set", inner, "up")
    limit = ("root", "tbf", "rate", f"{megabits:g}mbit", "burst", "32kb", "latency", "50ms")
    _run(tc, "qdisc", "add", "dev", outer, *limit)
    _run(*inside, tc, "qdisc", "add", "dev", inner, *limit)
    hosts = folder / "node-hosts"
    others = [line for line in Path("/etc/hosts").read_text().splitlines() if "localhost" not in line.split()]
    hosts.write_text("\n".join([f"{GATEWAY} localhost", *others, ""]))
    # not `ip netns exec`, which hides the control groups that slurmd needs
    enter = (
        program("nsenter", "util-linux"),
        f"--net=/run/netns/{name}",
        program("unshare", "util-linux"),
        "--mount",
    )
    return Node(name, address, (*enter, "sh", "-c", _ENTER, str(hosts)))


def _remove(ip: str, names: Sequence[str]) -> None:
    for name in names:
        subprocess.run([ip, "netns", "delete", name], check=False, capture_output=True)
        subprocess.run([ip, "link", "delete", f"{name}o"], check=False, capture_output=True)
    subprocess.run([ip, "link", "delete", _BRIDGE], check=False, capture_output=True)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
