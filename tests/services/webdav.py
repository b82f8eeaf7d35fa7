"""Run WebDAV servers: Apache's mod_dav, and wsgidav and lighttpd's mod_webdav, which differ from it."""

from __future__ import annotations

import base64
import secrets
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import (
    MissingPackageError,
    free_port,
    program,
    start,
    wait_until,
    without_root,
)

_MODULES = (
    "mpm_event",
    "authn_core",
    "authn_file",
    "authz_core",
    "authz_user",
    "auth_basic",
    "dav",
    "dav_fs",
)
_FOLDER = "/usr/lib/apache2/modules"
_LIGHTTPD = "/usr/lib/lighttpd"


@dataclass(frozen=True)
class DavServer:
    """A running server that serves `root`; `login` is its user name and password, or empty."""

    url: str
    root: str
    login: tuple[str, str] | None = None

    @property
    def authorization(self) -> dict[str, str]:
        """Return the authorization header for requests without a client library."""
        if self.login is None:
            return {}
        return {"Authorization": "Basic " + base64.b64encode(":".join(self.login).encode()).decode()}


def start_apache(session: Path, folder: Path) -> DavServer:
    """Start Apache with mod_dav, mod_dav_fs and a login; raise `MissingPackageError` if it is not installed."""
    apache = program("apache2", "apache2-bin")
    data, run = folder / "data", folder / "run"
    for made in (data, run):
        made.mkdir(parents=True)
    login = ("me", f"planted-{secrets.token_hex(8)}")
    port = free_port()
    users = folder / "users"
    # Requests have the password (RFC 7617); the server's password file has its SHA-1.
    users.write_text(f"{login[0]}:{{SHA}}{_sha1(login[1])}\n")
    config = folder / "apache.conf"
    config.write_text(_apache(folder, data, run, port))
    words = without_root([apache, "-f", str(config), "-DFOREGROUND"], folder, data, run, owner_of_all=True)
    log = folder / "apache.log"
    pid = start(session, words, log)
    server = DavServer(f"http://127.0.0.1:{port}", str(data), login)
    wait_until(lambda: _speaks(server), pid, log)
    return server


def _apache(folder: Path, data: Path, run: Path, port: int) -> str:
    loaded = "\n".join(f"LoadModule {name}_module {_FOLDER}/mod_{name}.so" for name in _MODULES)
    return f"""ServerRoot "{folder}"
ServerName localhost
Listen 127.0.0.1:{port}
PidFile {run}/pid
ErrorLog {folder}/error.log
DefaultRuntimeDir {run}
Mutex file:{run}
{loaded}
ServerLimit 2
StartServers 1
ThreadsPerChild 32
MaxRequestWorkers 64
MinSpareThreads 8
MaxSpareThreads 64
DavLockDB {run}/locks
DocumentRoot {data}
KeepAlive On
MaxKeepAliveRequests 0
<Directory {data}>
    Dav On
    DavMinTimeout 1
    AuthType Basic
    AuthName hibali
    AuthBasicProvider file
    AuthUserFile {folder}/users
    Require valid-user
</Directory>
"""


def start_wsgidav(session: Path, folder: Path) -> DavServer:
    """Start wsgidav without a login and with locks in memory; raise `MissingPackageError` if it is not installed."""
    command = Path(sys.executable).parent / "wsgidav"
    if not command.exists():
        raise MissingPackageError("wsgidav is missing: install the Python packages wsgidav and cheroot")
    data = folder / "data"
    data.mkdir(parents=True)
    port = free_port()
    log = folder / "wsgidav.log"
    words = [
        command,
        "--host=127.0.0.1",
        f"--port={port}",
        f"--root={data}",
        "--auth=anonymous",
        "--no-config",
    ]
    pid = start(session, words, log, {"HOME": str(folder)})
    server = DavServer(f"http://127.0.0.1:{port}", str(data))
    wait_until(lambda: _speaks(server), pid, log)
    return server


def start_lighttpd(session: Path, folder: Path) -> DavServer:
    """Start lighttpd with mod_webdav and its locks and properties in SQLite; raise `MissingPackageError` if it is not installed."""
    lighttpd = program("lighttpd", "lighttpd")
    if not Path(_LIGHTTPD, "mod_webdav.so").exists():
        raise MissingPackageError("lighttpd-mod-webdav")
    data = folder / "data"
    data.mkdir(parents=True)
    port = free_port()
    config = folder / "lighttpd.conf"
    config.write_text(f"""server.modules = ("mod_webdav")
server.document-root = "{data}"
server.bind = "127.0.0.1"
server.port = {port}
server.errorlog = "{folder}/error.log"
server.max-keep-alive-requests = 100000
webdav.activate = "enable"
webdav.sqlite-db-name = "{folder}/webdav.db"
""")
    log = folder / "lighttpd.log"
    pid = start(session, [lighttpd, "-D", "-f", str(config)], log)
    server = DavServer(f"http://127.0.0.1:{port}", str(data))
    wait_until(lambda: _speaks(server), pid, log)
    return server


def _sha1(password: str) -> str:
    import hashlib

    return base64.b64encode(hashlib.sha1(password.encode(), usedforsecurity=False).digest()).decode()


def _speaks(server: DavServer) -> bool:
    request = urllib.request.Request(server.url + "/", method="OPTIONS", headers=server.authorization)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:  # noqa: S310 - a loopback address
            return "1" in answer.headers.get("DAV", "")
    except urllib.error.HTTPError as answer:
        answer.close()
        return False
    except OSError:
        return False
