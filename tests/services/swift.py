"""Run OpenStack Swift on one machine with its S3 API: proxy, account, container and object server on one folder."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

from tests.services.object_store import ObjectStore, new_store, try_one_object
from tests.services.processes import (
    MissingPackageError,
    ServiceError,
    answers,
    free_port,
    program,
    server_environment,
    start,
    wait_until,
)

# created by tests/prepare.sh from tests/swift.lock
_HOME = Path(__file__).resolve().parents[2] / ".cache" / "swift"
_LOCK = Path(__file__).resolve().parents[1] / "swift.lock"
_ACCOUNT, _OTHER_ACCOUNT = "study", "guest"
_PAGE = 100  # creating objects is slow in Swift
_PARTS = ("account", "container", "object")

# Create the rings of three servers with one device each; arguments: a folder, then the ports in the order of _PARTS.
_RINGS = """
import sys
from swift.common.ring import RingBuilder
folder, *ports = sys.argv[1:]
for name, port in zip(("account", "container", "object"), ports):
    builder = RingBuilder(6, 1, 0)
    device = {"id": 0, "region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(port), "device": "d1", "weight": 1}
    builder.add_dev({**device, "replication_ip": "127.0.0.1", "replication_port": int(port), "meta": ""})
    builder.rebalance()
    builder.get_ring().save(folder + "/" + name + ".ring.gz")
"""

_SWIFT = """
[swift-hash]
swift_hash_path_prefix = x
swift_hash_path_suffix = y
[storage-policy:0]
name = one
default = yes
"""

# Increase the timeouts for loaded machines: with the defaults, Swift delays container updates and listings miss objects.
_COMMON = """
[DEFAULT]
user = {user}
swift_dir = {folder}
bind_ip = 127.0.0.1
bind_port = {port}
workers = {workers}
log_level = WARNING
log_udp_host = 127.0.0.1
log_udp_port = 9
devices = {folder}/devices
mount_check = false
disable_fallocate = true
fallocate_reserve = 0
conn_timeout = 30
node_timeout = 120
container_update_timeout = 120
client_timeout = 300
"""

_STORAGE = """
[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
conn_timeout = 30
node_timeout = 120
container_update_timeout = 120
"""

_PROXY = """
[pipeline:main]
pipeline = catch_errors cache listing_formats s3api tempauth copy slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
conn_timeout = 30
node_timeout = 120
recoverable_node_timeout = 120
error_suppression_limit = 1000000
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memory}
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
location = {region}
allow_multipart_uploads = true
auth_pipeline_check = false
max_bucket_listing = {page}
[filter:tempauth]
use = egg:swift#tempauth
user_{account}_{user} = {secret} .admin
user_{other_account}_{other_user} = {other_secret} .admin
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
"""


def start_swift(session: Path, folder: Path) -> ObjectStore:
    """Start Swift; raise `MissingPackageError` if it was not prepared."""
    binaries = _binaries()
    memcached = program("memcached", "memcached")
    store = new_store()
    user, proxy = store.access_key, int(store.endpoint.rpartition(":")[2])
    other_user, other_secret = secrets.token_hex(8), secrets.token_hex(20)
    store = ObjectStore(
        store.endpoint,
        f"{_ACCOUNT}:{user}",
        store.secret_key,
        store.region,
        _PAGE,
        other_access_key=f"{_OTHER_ACCOUNT}:{other_user}",
        other_secret_key=other_secret,
    )
    (folder / "devices" / "d1").mkdir(parents=True)
    ports = dict(zip(_PARTS, (free_port() for _ in _PARTS), strict=True))
    memory = free_port()
    _make_rings(session, binaries, folder, [ports[name] for name in _PARTS])
    (folder / "swift.conf").write_text(_SWIFT)
    for name, port in ports.items():
        _configure(folder, name, port, _STORAGE.format(name=name))
    known = {"account": _ACCOUNT, "user": user, "secret": store.secret_key}
    known |= {"other_account": _OTHER_ACCOUNT, "other_user": other_user, "other_secret": other_secret}
    _configure(folder, "proxy", proxy, _PROXY.format(memory=memory, region=store.region, page=_PAGE, **known))
    words = [memcached, "-u", _login(), "-l", "127.0.0.1", "-p", str(memory), "-m", "64"]
    started = [(memory, start(session, words, folder / "memcached.log"), folder / "memcached.log")]
    for name, port in (*ports.items(), ("proxy", proxy)):
        log = folder / f"{name}.log"
        words = [binaries / f"swift-{name}-server", folder / f"{name}.conf", "-v"]
        started.append((port, start(session, words, log, {"HOME": str(folder)}), log))
    for port, pid, log in started:
        wait_until(lambda port=port: answers(port), pid, log)
    try_one_object(store, *started[-1][1:])
    return store


def _binaries() -> Path:
    ready = _HOME / ".ready"
    if not ready.exists() or ready.stat().st_mtime < _LOCK.stat().st_mtime:
        raise MissingPackageError("swift is missing or out of date: run `sh tests/prepare.sh swift`")
    return _HOME / "bin"


def _make_rings(session: Path, binaries: Path, folder: Path, ports: list[int]) -> None:
    words = [binaries / "python", "-W", "ignore", "-c", _RINGS, folder, *map(str, ports)]
    made = subprocess.run(
        words, env=server_environment(session), capture_output=True, text=True, check=False, timeout=120
    )
    if made.returncode:
        raise ServiceError(f"swift's rings could not be created: {made.stderr[-2000:]}")


def _configure(folder: Path, name: str, port: int, more: str) -> None:
    workers = 2 if name in {"proxy", "object"} else 1
    common = _COMMON.format(user=_login(), folder=folder, port=port, workers=workers)
    path = folder / f"{name}.conf"
    path.touch(mode=0o600)
    path.write_text(common + more)


def _login() -> str:
    import getpass

    return getpass.getuser()
