"""Simulated hosts on this machine, each with its own name, network, clock and home.

Each is a UTS and a network namespace, which reaches only the ports that are relayed out of it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.faulty_proxy import CuttingProxy
from tests.support.requirements import skip_or_fail

_CLONE_NEWNET = 0x40000000  # setns(2)
_SIOCSIFFLAGS, _UP_AND_RUNNING = 0x8914, 0x41  # netdevice(7)


class Host:
    """A simulated host; the arguments `words` before a command run it there; `relays` count outgoing bytes by port."""

    def __init__(self, name: str, folder: Path, runtime: Path, clock: int) -> None:
        for made in (folder, runtime):
            made.mkdir(mode=0o700)
        self.name = name
        self.relays: dict[int, CuttingProxy] = {}
        script = 'hostname "$0" && echo ready && exec sleep infinity'
        self._process = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c", script, name], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        spaces = f"/proc/{self._process.pid}/ns"
        self.words = [
            "nsenter",
            f"--net={spaces}/net",
            f"--uts={spaces}/uts",
            *(_with_clock(clock) if clock else ()),
            "env",
            f"HIBALI_STATE={folder}",
            f"XDG_RUNTIME_DIR={runtime}",
        ]

    def relay(self, port: int) -> CuttingProxy:
        """Relay the host's loopback `port` to that of this machine, and count the bytes."""
        self.relays[port] = CuttingProxy(port, listening=_listening(self._process.pid, port))
        return self.relays[port]

    def close(self) -> None:
        """End the host with all its listeners."""
        for relay in self.relays.values():
            relay.close()
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _with_clock(seconds: int) -> list[str]:
    """Return the arguments before a command that shift its clock; libfaketime breaks waiting in Python
    3.11."""
    if shutil.which("datefudge") is None:
        skip_or_fail("datefudge is missing")
    return ["datefudge", f"{abs(seconds)} seconds {'ago' if seconds < 0 else ''}"]


def _listening(pid: int, port: int) -> socket.socket:
    """Return a socket that listens in another process's network namespace; a thread enters it and enables its loopback."""
    made: list[socket.socket] = []

    def make() -> None:
        space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(space, _CLONE_NEWNET) != 0:
                return
        finally:
            os.close(space)
        with socket.socket() as control:
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))
        made.append(socket.create_server(("127.0.0.1", port)))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert made, "the network namespace could not be entered"
    return made[0]


@contextmanager
def two_hosts(folder: Path, runtime: Path, *, apart: int) -> Iterator[tuple[Host, Host]]:
    """Yield `north` with this machine's clock, and `south` `apart` seconds ahead; skip without permission."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or not _may_unshare():
        pytest.skip("only root may make namespaces")
    hosts: list[Host] = []
    try:
        for name, clock in (("north", 0), ("south", apart)):
            hosts.append(Host(name, folder / name, runtime / name, clock))
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            with suppress(OSError):
                host.close()


def _may_unshare() -> bool:
    tried = subprocess.run(["unshare", "--net", "--uts", "true"], check=False, capture_output=True)
    return tried.returncode == 0
