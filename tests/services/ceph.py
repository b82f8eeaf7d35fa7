"""Run Ceph's RADOS gateway with one monitor and one OSD; its tests are skipped if Debian's packages are not installed."""

from __future__ import annotations

import secrets
import subprocess
import uuid
from pathlib import Path

from tests.services.object_store import ObjectStore, new_store, speaks, try_one_object
from tests.services.processes import (
    ServiceError,
    free_port,
    program,
    server_environment,
    start,
    succeeds,
    wait_until,
)

PACKAGES = "ceph-mon ceph-mgr ceph-osd radosgw ceph-common"
_OSD_BYTES = "8G"  # a sparse file

_CONF = """
[global]
fsid = {cluster}
mon initial members = a
mon host = v1:127.0.0.1:{monitor}
ms bind msgr2 = false
auth cluster required = none
auth service required = none
auth client required = none
keyring = {folder}/keyring
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd pool default pg num = 8
osd pool default pgp num = 8
osd crush chooseleaf type = 0
mon data = {folder}/mon
mgr data = {folder}/mgr
osd data = {folder}/osd
osd objectstore = bluestore
bluestore block size = {osd_bytes}
osd memory target = 1G
log file = {folder}/$name.log
pid file = {folder}/$name.pid
admin socket = {folder}/$name.asok
run dir = {folder}
crash dir = {folder}
public addr = 127.0.0.1
mon data avail warn = 1
mon data avail crit = 1
[mgr]
mgr initial modules =
[client.rgw]
rgw frontends = beast endpoint={address}
rgw enable usage log = false
rgw dynamic resharding = false
"""


def start_ceph(session: Path, folder: Path) -> ObjectStore:
    """Start the gateway; raise `MissingPackageError` if its packages are not installed."""
    for name in ("ceph-mon", "ceph-mgr", "ceph-osd", "radosgw", "ceph"):
        program(name, PACKAGES)
    for name in ("mon", "mgr", "osd"):
        (folder / name).mkdir(parents=True)
    store = new_store()
    ceph = _Ceph(session, folder)
    monitor = free_port()
    conf = _CONF.format(
        cluster=ceph.cluster,
        monitor=monitor,
        folder=folder,
        osd_bytes=_OSD_BYTES,
        address=store.endpoint.removeprefix("http://"),
    )
    (folder / "ceph.conf").write_text(conf)
    _start_cluster(ceph, monitor)
    gateway = ceph.start("radosgw", "-n", "client.rgw")
    log = folder / "radosgw.out"
    wait_until(lambda: speaks(store.endpoint), gateway, log, seconds=180)
    keys = (f"--access-key={store.access_key}", f"--secret-key={store.secret_key}")
    ceph.run("radosgw-admin", "user", "create", "--uid=test", "--display-name=test", *keys)
    try_one_object(store, gateway, log)
    return store


class _Ceph:
    """Ceph's programs with one configuration."""

    def __init__(self, session: Path, folder: Path) -> None:
        self.folder = folder
        self.cluster = uuid.UUID(bytes=secrets.token_bytes(16), version=4)
        self._session = session
        self._environment = {"CEPH_CONF": str(folder / "ceph.conf"), "HOME": str(folder)}

    def run(self, name: str, *words: str | Path) -> None:
        """Run a command to its end; raise `ServiceError` if it fails."""
        known = server_environment(self._session, self._environment)
        command = [program(name, PACKAGES), *words]
        ended = subprocess.run(command, env=known, capture_output=True, text=True, check=False, timeout=120)
        if ended.returncode:
            raise ServiceError(f"{name} {words[0]} failed: {ended.stderr[-2000:]}")

    def start(self, name: str, *words: str | Path) -> int:
        """Start one server with its output in `NAME.out`."""
        command = [program(name, PACKAGES), "-f", *words]
        return start(self._session, command, self.folder / f"{name}.out", self._environment)

    def answers(self) -> bool:
        """Return whether the monitor answers."""
        known = server_environment(self._session, self._environment)
        return succeeds([program("ceph", PACKAGES), "--connect-timeout=5", "health"], known)


def _start_cluster(ceph: _Ceph, port: int) -> None:
    folder = ceph.folder
    keyring, plan = folder / "keyring", folder / "monmap"
    ceph.run(
        "ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"
    )
    allowed = ("--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *")
    ceph.run("ceph-authtool", keyring, "--gen-key", "-n", "client.admin", *allowed)
    address = f"[v1:127.0.0.1:{port}]"
    ceph.run("monmaptool", "--create", "--addv", "a", address, "--fsid", str(ceph.cluster), plan)
    ceph.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", plan, "--keyring", keyring)
    monitor = ceph.start("ceph-mon", "-i", "a")
    wait_until(ceph.answers, monitor, folder / "ceph-mon.out")
    ceph.start("ceph-mgr", "-i", "x")
    disk = str(uuid.uuid4())
    ceph.run("ceph", "osd", "new", disk)
    ceph.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
    ceph.start("ceph-osd", "-i", "0")
