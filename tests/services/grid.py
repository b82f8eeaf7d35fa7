"""Run a test grid: a certificate authority, host and user certificates, proxies, GridFTP and MyProxy servers."""

from __future__ import annotations

import getpass
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services.gsi_server import LIBRARY
from tests.services.processes import (
    SYSTEM_PATH,
    MissingPackageError,
    ServiceError,
    answers,
    free_port,
    program,
    start,
    succeeds,
    wait_until,
)

ORGANISATION = "/O=HibaliTest"
AUTHORITY = f"{ORGANISATION}/CN=Hibali Test CA"
PERSON = f"{ORGANISATION}/OU=people/CN=Test User"
DAYS = "3650"

# Any account may store a credential, and retrieve it with its passphrase.
MYPROXY = """accepted_credentials "*"
authorized_retrievers "*"
default_retrievers "*"
authorized_renewers "*"
default_renewers "none"
authorized_key_retrievers "*"
default_key_retrievers "none"
default_trusted_retrievers "none"
"""


@dataclass(frozen=True)
class Grid:
    """A running GridFTP server on loopback, with the credentials for a login with GSI.

    `passphrase` decrypts `locked_key`; `user_key` is the same key unencrypted. `myproxy_port` is 0 if no MyProxy
    server is installed.
    """

    folder: str
    port: int
    myproxy_port: int
    passphrase: str

    @property
    def url(self) -> str:
        return f"gsiftp://localhost:{self.port}"

    @property
    def data(self) -> Path:
        """Return a folder for test data, initially empty; the server exports the whole filesystem."""
        return Path(self.folder) / "data"

    @property
    def proxy(self) -> Path:
        return Path(self.folder) / "proxy"

    @property
    def certificates(self) -> Path:
        return Path(self.folder) / "certificates"

    @property
    def user_certificate(self) -> Path:
        return Path(self.folder) / "user/usercert.pem"

    @property
    def user_key(self) -> Path:
        return Path(self.folder) / "user/userkey.pem"

    @property
    def locked_key(self) -> Path:
        return Path(self.folder) / "user/lockedkey.pem"

    @property
    def log(self) -> Path:
        return Path(self.folder) / "gridftp.log"

    @property
    def transfers(self) -> Path:
        """Return the GridFTP servers' log: one line per completed file, with `START=` and `NBYTES=`."""
        return Path(self.folder) / "gridftp-transfers.log"

    @property
    def env(self) -> dict[str, str]:
        """Return the variables of a user's shell after a login to the grid."""
        return {
            "X509_CERT_DIR": str(self.certificates),
            "X509_USER_PROXY": str(self.proxy),
            "GLOBUS_HOSTNAME": "localhost",
        }

    @property
    def host_env(self) -> dict[str, str]:
        """Return the variables that a server of this grid needs."""
        return {
            "X509_CERT_DIR": str(self.certificates),
            "X509_USER_CERT": f"{self.folder}/host/hostcert.pem",
            "X509_USER_KEY": f"{self.folder}/host/hostkey.pem",
            "GRIDMAP": f"{self.folder}/grid-mapfile",
            "GLOBUS_HOSTNAME": "localhost",
            "HOME": self.folder,
        }

    def make_proxy(self, path: Path, seconds: int = 12 * 3600) -> Path:
        """Create a proxy at `path`, mode 0600, valid for `seconds` from now; a negative number creates an expired one."""
        minutes = max(-(-seconds // 60), 1)
        earlier = minutes * 60 - seconds
        init = program("grid-proxy-init", "globus-proxy-utils")
        words = [init, "-q", "-valid", f"{minutes // 60}:{minutes % 60}", "-out", str(path)]
        words += ["-cert", str(self.user_certificate), "-key", str(self.user_key)]
        if earlier:
            words = [program("datefudge", "datefudge"), f"{earlier} seconds ago", *words]
        _run(words, {"X509_CERT_DIR": str(self.certificates)})
        return path


def start_grid(session: Path, folder: Path) -> Grid:
    """Create the certificates and start the servers; raise `MissingPackageError` for a program that is not installed."""
    program("globus-url-copy", "globus-gass-copy-progs")
    folder.mkdir(mode=0o755, parents=True)
    grid = Grid(str(folder), free_port(), free_port(), f"planted-{secrets.token_hex(8)}")
    _make_certificates(grid)
    grid.make_proxy(grid.proxy)
    grid.data.mkdir()
    start_gridftp(session, grid, grid.port)
    _start_myproxy(session, grid)
    return grid


def start_gridftp(
    session: Path, grid: Grid, port: int, *, name: str = "localhost", around: Sequence[str] = ()
) -> int:
    """Start another GridFTP server of this grid, for example one that a test may kill; return its pid.

    `around` is a command prefix, for example to enter another network namespace, in which the server's address is `name`.
    """
    config = Path(grid.folder) / "gridftp.conf"
    config.touch()  # do not read /etc/gridftp.conf
    words = [*around, program("globus-gridftp-server", "globus-gridftp-server-progs")]
    words += ["-c", str(config), "-s", "-p", str(port), "-auth-level", "1", "-home-dir", str(grid.data)]
    if not around:
        words += ["-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1"]
    if os.geteuid() == 0:
        words.append("-allow-root")
    words += ["-d", "ERROR,WARN", "-l", str(grid.log), "-Z", str(grid.transfers)]
    log = session / f"gridftp-{port}.out"
    pid = start(session, words, log, {**grid.host_env, "GLOBUS_HOSTNAME": name})
    if not around:
        wait_until(lambda: answers(port), pid, log)
    return pid


@dataclass(frozen=True)
class GsiServer:
    """An SSH server with GSI key exchange (gsi_server.py), and the command of its client, Debian's ssh."""

    port: int
    log: Path
    command: tuple[str, ...]

    def connections(self) -> int:
        """Return the number of connections since the server started."""
        return self.log.read_text().count("connection\n")


def start_gsi_server(
    session: Path, grid: Grid, *, name: str = "localhost", environment: Mapping[str, str] | None = None
) -> GsiServer:
    """Start the server with a certificate for the host `name` and `environment` in addition to the grid's; it ends with `session`."""
    libraries = sorted(Path("/usr/lib").glob(f"*/{LIBRARY}"))
    if not libraries:
        raise MissingPackageError("libglobus-gssapi-gsi4 is not installed")
    mechanism = session / "mechanism"
    mechanism.write_text(f"gsi 1.3.6.1.4.1.3536.1.1.1 {libraries[0]}\n")
    own_env = {**grid.host_env, **(environment or {})}
    if name != "localhost":
        own = session / name
        own.mkdir()
        _issue(Path(grid.folder), name, f"{ORGANISATION}/CN={name}", [f"subjectAltName=DNS:{name}"], own)
        own_env |= {
            "X509_USER_CERT": f"{own}/{name}cert.pem",
            "X509_USER_KEY": f"{own}/{name}key.pem",
        }
    port, log = free_port(), session / f"gsi-{name}.log"
    pid = start(
        session, [sys.executable, str(Path(__file__).with_name("gsi_server.py")), str(port)], log, own_env
    )
    wait_until(lambda: answers(port), pid, log)
    client = ("env", f"GSS_MECH_CONFIG={mechanism}", program("ssh", "openssh-client"), "-F", "none")
    return GsiServer(port, log, (*client, "-p", str(port), "-o", "GSSAPIKeyExchange=yes"))


def _start_myproxy(session: Path, grid: Grid) -> None:
    folder = Path(grid.folder) / "myproxy"
    folder.mkdir(mode=0o700)
    kept = folder / "kept"
    kept.mkdir(mode=0o700)
    (folder / "config").write_text(MYPROXY)
    words = [program("myproxy-server", "myproxy-server"), "-c", str(folder / "config"), "-s", str(kept)]
    words += ["-l", "127.0.0.1", "-p", str(grid.myproxy_port), "-P", str(folder / "pid")]
    log = folder / "log"
    start(session, words, log, grid.host_env)
    wait_until(lambda: answers(grid.myproxy_port), os.getpid(), log)  # it daemonizes itself


def _make_certificates(grid: Grid) -> None:
    """Create a certificate authority without globus-simple-ca, which writes to /etc as root."""
    folder = Path(grid.folder)
    for name, mode in (("ca", 0o700), ("certificates", 0o755), ("host", 0o755), ("user", 0o755)):
        (folder / name).mkdir(mode=mode)
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-sha256", "-days", DAYS, "-subj", AUTHORITY]
    request += ["-addext", "basicConstraints=critical,CA:TRUE"]
    request += ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    authority = folder / "ca/cacert.pem"
    _openssl([*request, "-keyout", str(folder / "ca/cakey.pem"), "-out", str(authority)])
    name = _openssl(["x509", "-in", str(authority), "-noout", "-hash"]).strip()
    (grid.certificates / f"{name}.0").write_bytes(authority.read_bytes())
    (grid.certificates / f"{name}.signing_policy").write_text(
        f"access_id_CA  X509    '{AUTHORITY}'\n"
        "pos_rights    globus  CA:sign\n"
        f"cond_subjects globus  '\"{ORGANISATION}/*\"'\n"
    )
    usage = "keyUsage=critical,digitalSignature,keyEncipherment"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1,DNS:far.test"  # the server at the other end of an emulated link
    _issue(
        folder,
        "host",
        f"{ORGANISATION}/CN=localhost",
        [usage, "extendedKeyUsage=serverAuth,clientAuth", names],
    )
    _issue(folder, "user", PERSON, [usage, "extendedKeyUsage=clientAuth"])
    key = ["rsa", "-aes256", "-in", str(grid.user_key), "-out", str(grid.locked_key), "-passout", "stdin"]
    _openssl(key, grid.passphrase)
    grid.locked_key.chmod(0o400)
    (folder / "grid-mapfile").write_text(f'"{PERSON}" {getpass.getuser()}\n')


def _issue(
    folder: Path,
    name: str,
    subject: str,
    extensions: Sequence[str],
    out: Path | None = None,
) -> None:
    out = out or folder / name
    wanted, key, extension_file = out / f"{name}req.pem", out / f"{name}key.pem", out / "extensions"
    extension_file.write_text("\n".join(["basicConstraints=critical,CA:FALSE", *extensions, ""]))
    _openssl(
        ["req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", subject, "-keyout", key, "-out", wanted]
    )
    sign = ["x509", "-req", "-sha256", "-days", DAYS, "-in", wanted, "-extfile", extension_file]
    sign += ["-CA", folder / "ca/cacert.pem", "-CAkey", folder / "ca/cakey.pem"]
    _openssl([*sign, "-set_serial", f"0x{secrets.token_hex(8)}", "-out", out / f"{name}cert.pem"])
    key.chmod(0o400)


def _openssl(words: Sequence[str | Path], typed: str = "") -> str:
    return _run([program("openssl", "openssl"), *map(str, words)], {}, typed)


def _run(words: Sequence[str], environment: dict[str, str], typed: str = "") -> str:
    ended = subprocess.run(
        words,
        env={"PATH": SYSTEM_PATH, **environment},
        input=f"{typed}\n",
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=60,
    )
    if ended.returncode != 0:
        raise ServiceError(f"{' '.join(words)} ended with {ended.returncode}: {ended.stdout}{ended.stderr}")
    return ended.stdout


def logs_in(grid: Grid) -> bool:
    """Return whether a login and a listing succeed."""
    copy = program("globus-url-copy", "globus-gass-copy-progs")
    return succeeds([copy, "-list", f"{grid.url}{grid.data}/"], {"PATH": SYSTEM_PATH, **grid.env})
