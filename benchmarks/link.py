"""Emulate a long-distance link: a network namespace behind wanlink.c, with an sshd in it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import MissingPackageError, ServiceError, is_alive, program, start, wait_until
from tests.services.sshd import SshServer

NAMESPACE, HERE, THERE, DEVICE = "hib-far", "10.97.0.1", "10.97.0.2", "hib0"
_SOURCE = Path(__file__).with_name("wanlink.c")


@dataclass(frozen=True)
class Link:
    """Link properties: round-trip time in ms, rate in Mbit/s, packet loss in percent."""

    round_trip: float = 110
    rate: float = 1000
    loss: float = 0


@contextlib.contextmanager
def long_link(session: Path, link: Link, near: SshServer) -> Iterator[Path]:
    """Set up the link and yield an `ssh -F` configuration whose host `host` is at its remote end.

    Raises:
        MissingPackageError: The link cannot be set up on this machine.
    """
    if os.geteuid() != 0:
        raise MissingPackageError("the emulated link needs root")
    if not Path("/dev/net/tun").exists():
        raise MissingPackageError("the emulated link needs /dev/net/tun")
    if Path("/sys/class/net", DEVICE).exists():
        raise MissingPackageError(
            f"the network device {DEVICE} already exists: another benchmark run is using it"
        )
    ip = program("ip", "iproute2")
    folder = session / "link"
    folder.mkdir(exist_ok=True)
    subprocess.run([program("gcc", "gcc"), "-O2", "-o", folder / "wanlink", _SOURCE], check=True)
    # an interrupted run leaves its namespace behind
    subprocess.run([ip, "netns", "delete", NAMESPACE], check=False, capture_output=True)
    numbers = [f"{number:g}" for number in (link.round_trip, link.rate, link.loss)]
    log = folder / "wanlink.log"
    log.unlink(missing_ok=True)
    wanlink = start(session, [folder / "wanlink", NAMESPACE, HERE, THERE, *numbers], log)
    started = [wanlink]
    try:
        wait_until(lambda: b"wanlink ready" in log.read_bytes(), wanlink, log)
        started.append(_start_remote_sshd(session, folder, ip, near))
        yield folder / "config"
    finally:
        for pid in reversed(started):
            _end(pid)
        subprocess.run([ip, "netns", "delete", NAMESPACE], check=False, capture_output=True)


def _start_remote_sshd(session: Path, folder: Path, ip: str, near: SshServer) -> int:
    """Start the sshd of tests/services with the remote address, and write its client configuration."""
    settings = (Path(near.folder) / "sshd_config").read_text()
    settings = re.sub("^MaxStartups .*\n", "", settings, flags=re.MULTILINE)  # sshd's default, as at a site
    settings = settings.replace("ListenAddress 127.0.0.1", f"ListenAddress {THERE}")
    (folder / "sshd_config").write_text(settings.replace(f"{near.folder}/sshd.pid", f"{folder}/sshd.pid"))
    config = near.config.read_text().replace("HostName 127.0.0.1", f"HostName {THERE}")
    (folder / "config").write_text(config.replace(f"{near.folder}/known_hosts", f"{folder}/known_hosts"))
    key = (Path(near.folder) / "host_key.pub").read_text().rsplit(" ", 1)[0]
    (folder / "known_hosts").write_text(f"{near.host},{THERE},[{THERE}]:{near.port} {key}\n")
    inside = [ip, "netns", "exec", NAMESPACE, program("sshd", "openssh-server"), "-D", "-e"]
    log = folder / "sshd.log"
    log.unlink(missing_ok=True)
    pid = start(session, [*inside, "-f", folder / "sshd_config"], log)
    wait_until(lambda: b"Server listening" in log.read_bytes(), pid, log)
    return pid


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 15)
    deadline = time.monotonic() + 10
    while is_alive(pid):
        if time.monotonic() > deadline:
            raise ServiceError(f"process {pid} of the emulated link did not end within 10 s of SIGTERM")
        time.sleep(0.02)
