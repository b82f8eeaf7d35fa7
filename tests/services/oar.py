"""Run OAR with its own PostgreSQL and one node, reached through an account that may submit jobs.

OAR's programs always read /etc/oar/oar.conf, and refuse root. Therefore its servers and the sshd for logins run in
mount namespaces in which /etc has the tests' configuration and accounts.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import (
    SYSTEM_PATH,
    MissingPackageError,
    ServiceError,
    answers,
    free_port,
    program,
    server_environment,
    start,
    succeeds,
    wait_until,
)
from tests.services.sshd import SshServer, start_sshd_as

CORES = 4
ACCOUNT, NUMBER = "hibali-tests", 64917
_BIND = 'mount --bind "$1/oar.conf" /etc/oar/oar.conf && mount --bind "$1/passwd" /etc/passwd && shift && exec "$@"'


@dataclass(frozen=True)
class Oar(SshServer):
    """A running OAR: `oarsub` works for `ssh -F config host`, whose account owns `home`."""


def start_oar(session: Path, folder: Path) -> Oar:
    """Start PostgreSQL, OAR's server, the node's sshd and the login sshd; raise `MissingPackageError` without root."""
    programs = _programs()
    if os.geteuid() != 0:
        raise MissingPackageError("only root can start OAR")
    folder.mkdir()
    folder.chmod(0o711)
    inside = [program("unshare", "util-linux"), "--mount", "--propagation", "slave", "/bin/sh", "-c", _BIND]
    inside += ["sh", str(folder)]
    database, server, node = free_port(), free_port(), free_port()
    home = folder / "ssh" / "home"
    accounts = Path("/etc/passwd").read_text()
    (folder / "passwd").write_text(f"{accounts}{ACCOUNT}:x:{NUMBER}:{NUMBER}::{home}:/bin/bash\n")
    _write_configuration(folder, database, server, node)
    known = server_environment(session)
    if not succeeds([*inside, "true"], known):
        raise MissingPackageError("mount namespaces are not allowed here")
    _start_postgresql(session, folder, database)
    _make_tables(folder, inside, known)
    _start_node(session, folder, inside, node)
    log = folder / "almighty.log"
    pid = start(session, [*inside, programs["Almighty"]], log)
    wait_until(lambda: answers(server), pid, log)
    _add_cores(inside, known)
    wait_until(lambda: "alive" in _output_of(inside, known, "oarnodes").lower(), pid, log)
    ssh = start_sshd_as(session, folder / "ssh", (ACCOUNT, NUMBER), inside)
    return Oar(folder=ssh.folder, port=ssh.port, user=ssh.user)


def _programs() -> dict[str, str]:
    packages = {
        "oarsub": "oar-user",
        "oar-database": "oar-server-pgsql",
        "Almighty": "oar-server",
        "sshd": "openssh-server",
    }
    if not any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        raise MissingPackageError("postgres is missing: install the package postgresql")
    return {name: program(name, package) for name, package in packages.items()}


def _write_configuration(folder: Path, database: int, server: int, node: int) -> None:
    """Write Debian's configuration with the tests' ports, without control groups and with short intervals."""
    ssh = f"/usr/bin/ssh -p {node} -e none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    log = folder / "oar.log"
    values = {
        "DB_HOSTNAME": "127.0.0.1",
        "DB_PORT": str(database),
        "DB_BASE_PASSWD": "oar",
        "DB_BASE_PASSWD_RO": "oar_ro",
        "SERVER_HOSTNAME": "localhost",
        "SERVER_PORT": str(server),
        "OPENSSH_CMD": ssh,
        "OARSUB_NODES_RESOURCES": "network_address",
        "PINGCHECKER_GENERIC_COMMAND": "/bin/true",  # ping may not be installed, and the node is always up
        "SCHEDULER_JOB_SECURITY_TIME": "2",
        "SCHEDULER_MIN_TIME_BETWEEN_2_CALLS": "1",
        "FINAUD_FREQUENCY": "0",
        "LOG_FILE": str(log),
        "OAR_RUNTIME_DIRECTORY": str(folder / "runtime"),
    }
    path = Path("/etc/oar/oar.conf")
    lines = [
        line
        for line in path.read_text(errors="replace").splitlines()
        if not re.match(r"#?\s*(\w+)=", line)
        or (
            line.split("=")[0].strip("# ") not in values
            and not re.match(r"PINGCHECKER|JOB_RESOURCE_MANAGER_(?:PROPERTY_DB_FIELD|FILE)=", line)
        )
    ]
    conf = folder / "oar.conf"
    conf.touch(mode=0o600)
    conf.write_text("\n".join([*lines, *(f'{name}="{value}"' for name, value in values.items()), ""]))
    log.touch()
    (folder / "runtime").mkdir(mode=0o755)
    for path in (conf, log, folder / "runtime"):
        shutil.chown(path, "oar")


def _start_postgresql(session: Path, folder: Path, port: int) -> None:
    binaries = max(Path("/usr/lib/postgresql").glob("*/bin"))
    data, sockets, log = folder / "pg", folder / "sockets", folder / "postgres.log"
    owner = pwd.getpwnam("postgres")
    for path in (data, sockets):
        path.mkdir(mode=0o700)
        os.chown(path, owner.pw_uid, owner.pw_gid)
    as_owner = [program("runuser", "util-linux"), "-u", "postgres", "--"]
    known = server_environment(session)
    subprocess.run(
        [*as_owner, binaries / "initdb", "-D", data, "-A", "trust", "-E", "UTF8", "--no-sync"],
        env=known,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    words = [binaries / "postgres", "-D", data, "-p", str(port), "-k", sockets, "-F", "-h", "127.0.0.1"]
    pid = start(session, [*as_owner, *words], log)
    argv = [binaries / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
    wait_until(lambda: succeeds(argv, known), pid, log)


def _make_tables(folder: Path, inside: list[str], known: Mapping[str, str]) -> None:
    words = ["oar-database", "--create", "--db-admin-user=postgres", "--db-admin-pass=x", "-y"]
    answer = subprocess.run(
        [*inside, *words],
        env={**known, "PATH": SYSTEM_PATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=120,
    )
    (folder / "oar-database.log").write_bytes(answer.stdout + answer.stderr)
    if answer.returncode != 0:
        raise ServiceError(f"oar-database failed: {(answer.stdout + answer.stderr)[-1000:]!r}")


def _start_node(session: Path, folder: Path, inside: list[str], port: int) -> None:
    """Start the sshd through which OAR's server reaches the node, for the account oar only."""
    own, log = folder / "node", folder / "node.log"
    own.mkdir(mode=0o700)
    words = [program("ssh-keygen", "openssh-client"), "-q", "-t", "ed25519", "-N", "", "-f", own / "host_key"]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    (own / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {own}/host_key\nPidFile {own}/pid\n"
        "PasswordAuthentication no\nUsePAM no\nStrictModes no\nPermitUserEnvironment yes\nAllowUsers oar\n"
        "AcceptEnv OAR_CPUSET OAR_USER_CPUSET OAR_USER_GPUDEVICE OAR_JOB_USER\nMaxStartups 1024\n"
    )
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    sshd = program("sshd", "openssh-server")
    pid = start(session, [*inside, sshd, "-D", "-e", "-f", own / "sshd_config"], log)
    wait_until(lambda: answers(port), pid, log)


def _add_cores(inside: list[str], known: Mapping[str, str]) -> None:
    _output_of(inside, known, "oarproperty", "-a", "core")
    for number in range(1, CORES + 1):
        _output_of(
            inside, known, "oarnodesetting", "-a", "-h", "localhost", "-p", f"core={number}", "-s", "Alive"
        )


def _output_of(inside: list[str], known: Mapping[str, str], *words: str) -> str:
    answer = subprocess.run(
        [*inside, *words],
        env={**known, "PATH": SYSTEM_PATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if answer.returncode != 0:
        raise ServiceError(f"{words[0]} failed: {(answer.stdout + answer.stderr)[-500:]}")
    return answer.stdout
