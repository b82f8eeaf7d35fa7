"""Run Slurm's accounting: MariaDB and slurmdbd."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

from tests.services.processes import (
    answers,
    free_port,
    program,
    server_environment,
    start,
    succeeds,
    wait_until,
)


def start_slurmdbd(session: Path, folder: Path, munge: Path) -> int:
    """Start MariaDB and slurmdbd; return the port of slurmdbd."""
    slurmdbd = program("slurmdbd", "slurmdbd")
    me = pwd.getpwuid(os.geteuid()).pw_name
    database = _start_mariadb(session, folder, me)
    port, log, conf = free_port(), folder / "slurmdbd.log", folder / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(f"""AuthType=auth/munge
AuthInfo=socket={munge}
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/jwt.key
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={me}
PidFile={folder}/slurmdbd.pid
DebugLevel=info
CommunicationParameters=NoInAddrAny
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
""")
    pid = start(session, [slurmdbd, "-D"], log, {"SLURM_CONF": str(folder / "slurm.conf")})
    wait_until(lambda: answers(port), pid, log)
    return port


def _start_mariadb(session: Path, folder: Path, me: str) -> int:
    data, sock, log, port = (
        folder / "mariadb",
        folder / "mariadb.socket",
        folder / "mariadbd.log",
        free_port(),
    )
    known = server_environment(session)
    install = [program("mariadb-install-db", "mariadb-server"), "--no-defaults", f"--datadir={data}"]
    more = ["--auth-root-authentication-method=normal", f"--user={me}", "--skip-test-db"]
    subprocess.run([*install, *more], env=known, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    words = [program("mariadbd", "mariadb-server"), "--no-defaults", f"--user={me}", f"--datadir={data}"]
    net = [
        f"--socket={sock}",
        "--bind-address=127.0.0.1",
        f"--port={port}",
        f"--pid-file={folder}/mariadbd.pid",
    ]
    pace = [
        "--innodb-buffer-pool-size=128M",
        "--innodb-lock-wait-timeout=900",
        "--innodb-flush-log-at-trx-commit=2",
    ]
    pid = start(session, [*words, *net, *pace], log)
    login = ["--no-defaults", f"--socket={sock}", "-u", "root"]
    wait_until(
        lambda: succeeds([program("mariadb-admin", "mariadb-client"), *login, "ping"], known), pid, log
    )
    grant = (
        "create database slurm_acct; create user slurm@'127.0.0.1' identified by 'slurm';"
        " grant all on slurm_acct.* to slurm@'127.0.0.1';"
    )
    client = program("mariadb", "mariadb-client")
    subprocess.run([client, *login, "-e", grant], env=known, stdin=subprocess.DEVNULL, check=True)
    return port
