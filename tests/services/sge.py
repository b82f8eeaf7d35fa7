"""Run Grid Engine with one queue on one node, reached through its own sshd."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import (
    MARK,
    SYSTEM_PATH,
    MissingPackageError,
    ServiceError,
    free_port,
    program,
    server_environment,
    start,
    succeeds,
    wait_until,
)
from tests.services.sshd import SshServer, start_sshd

SLOTS = 4
_BINARIES = Path("/usr/lib/gridengine")
_SHARED = Path("/usr/share/gridengine")


@dataclass(frozen=True)
class GridEngine(SshServer):
    """A running cell: `qsub` works over `ssh -F config host` and, with `env`, locally."""

    cell: str = ""
    port_of_master: int = 0

    @property
    def env(self) -> dict[str, str]:
        """Return the variables that local commands need to reach it."""
        return {**_environment(Path(self.cell), self.port_of_master), MARK: f"{Path(self.cell).parent}/"}


def start_sge(session: Path, folder: Path) -> GridEngine:
    """Start sge_qmaster, sge_execd and an sshd; raise `MissingPackageError` without root."""
    sshd = program("sshd", "openssh-server")
    for name, package in {"sge_qmaster": "gridengine-master", "sge_execd": "gridengine-exec"}.items():
        if not (_BINARIES / name).exists():
            raise MissingPackageError(f"{name} is missing: install the package {package}")
    if not (_BINARIES / "qsub").exists():
        raise MissingPackageError("qsub is missing: install the package gridengine-client")
    if os.geteuid() != 0:
        raise MissingPackageError("only root can start Grid Engine")
    del sshd
    folder.mkdir()
    folder.chmod(0o711)
    cell, port = folder / "cell", _port_with_next()
    _lay_out(cell, folder / "spool")
    host = _name_of_this_host(cell, port)
    known = server_environment(session, _environment(cell, port))
    _make_database(folder, known)
    daemon = {**_environment(cell, port), "SGE_ND": "1"}  # stay in the foreground
    log = folder / "sge_qmaster.log"
    pid = start(session, [_BINARIES / "sge_qmaster"], log, daemon)
    wait_until(lambda: succeeds([_BINARIES / "qconf", "-sh"], known), pid, log)
    for words in (["-ah", host], ["-as", host]):
        _configure(known, *words)
    log = folder / "sge_execd.log"
    pid = start(session, [_BINARIES / "sge_execd"], log, daemon)
    wait_until(lambda: host in _told(known, "qconf", "-sel"), pid, log)
    _make_queue(folder, known, host)
    wait_until(lambda: _queue_is_up(known), pid, log)
    ssh = start_sshd(session, folder / "ssh", _environment(cell, port))
    return GridEngine(folder=ssh.folder, port=ssh.port, user=ssh.user, cell=str(cell), port_of_master=port)


def _environment(cell: Path, port: int) -> dict[str, str]:
    return {
        "SGE_ROOT": str(cell),
        "SGE_CELL": "default",
        "SGE_QMASTER_PORT": str(port),
        "SGE_EXECD_PORT": str(port + 1),
        "SGE_CLUSTER_NAME": "hibali",
        "PATH": f"{_BINARIES}:{SYSTEM_PATH}",
        "LD_LIBRARY_PATH": str(_BINARIES),
    }


def _port_with_next() -> int:
    """Find two consecutive free ports; return the first."""
    for _ in range(50):
        port = free_port()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
        return port
    raise ServiceError("no two free ports in a row")


def _lay_out(cell: Path, spool: Path) -> None:
    """Create the folders of Grid Engine, and links to its programs."""
    common = cell / "default" / "common"
    for path in (common, spool / "qmaster" / "job_scripts", spool / "execd", spool / "database"):
        path.mkdir(parents=True)
    answer = subprocess.run([_SHARED / "util" / "arch"], capture_output=True, text=True, check=True)
    (cell / "util").symlink_to(_SHARED / "util")
    for name in ("bin", "lib", "utilbin"):
        (cell / name).mkdir()
        (cell / name / answer.stdout.strip()).symlink_to(_BINARIES)
    (common / "cluster_name").write_text("hibali\n")
    (common / "bootstrap").write_text(
        "admin_user root\ndefault_domain none\nignore_fqdn false\nspooling_method berkeleydb\n"
        f"spooling_lib libspoolb\nspooling_params {spool}/database\nbinary_path {_BINARIES}\n"
        f"qmaster_spool_dir {spool}/qmaster\nsecurity_mode none\nlistener_threads 2\nworker_threads 2\n"
        "scheduler_threads 1\n"
    )


def _name_of_this_host(cell: Path, port: int) -> str:
    """Return the name to which the loopback address resolves, and make the host's own name an alias of it."""
    common = cell / "default" / "common"
    words = [_BINARIES / "gethostbyaddr", "-name", "127.0.0.1"]
    environment = {**_environment(cell, port)}
    answer = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    host = answer.stdout.strip()
    (common / "host_aliases").write_text(f"{host} {socket.gethostname()}\n")
    (common / "act_qmaster").write_text(f"{host}\n")
    return host


def _make_database(folder: Path, known: Mapping[str, str]) -> None:
    spool = folder / "spool"
    lines = (_SHARED / "default-configuration").read_text().replace("/var/spool/gridengine", str(spool))
    changed = {
        "min_uid": "0",
        "min_gid": "0",
        "load_report_time": "00:00:05",
        "reporting_params": "accounting=true reporting=false flush_time=00:00:01 accounting_flush_time=00:00:00 "
        "joblog=false sharelog=00:00:00",
    }
    (folder / "configuration").write_text(_changed(lines, changed))
    defaults = _BINARIES / "spooldefaults.bin"
    defaults = defaults if defaults.exists() else _BINARIES / "spooldefaults"
    resources = _SHARED / "util" / "resources"
    for words in (
        [_BINARIES / "spoolinit", "berkeleydb", "libspoolb", spool / "database", "init"],
        [defaults, "configuration", folder / "configuration"],
        [defaults, "complexes", resources / "centry"],
        [defaults, "usersets", resources / "usersets"],
        [defaults, "managers", "root"],
    ):
        answer = subprocess.run(words, env=known, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if answer.returncode != 0:
            raise ServiceError(f"{words[0]} failed: {(answer.stdout + answer.stderr)[-500:]!r}")


def _make_queue(folder: Path, known: Mapping[str, str], host: str) -> None:
    """Configure a queue with a parallel environment, and a scheduler with short intervals."""
    (folder / "hosts").write_text(f"group_name @allhosts\nhostlist {host}\n")
    _configure(known, "-Ahgrp", str(folder / "hosts"))
    (folder / "smp").write_text(
        "pe_name smp\nslots 999\nuser_lists NONE\nxuser_lists NONE\nstart_proc_args NONE\nstop_proc_args NONE\n"
        "allocation_rule $pe_slots\ncontrol_slaves FALSE\njob_is_first_task TRUE\nurgency_slots min\n"
        "accounting_summary FALSE\nqsort_args NONE\n"
    )
    _configure(known, "-Ap", str(folder / "smp"))
    queue = {
        "qname": "all.q",
        "hostlist": "@allhosts",
        "slots": str(SLOTS),
        "shell": "/bin/sh",
        "shell_start_mode": "unix_behavior",
        "load_thresholds": "NONE",
        "pe_list": "smp",
        "notify": "00:00:10",
    }
    (folder / "queue").write_text(_changed(_told(known, "qconf", "-sq"), queue))
    _configure(known, "-Aq", str(folder / "queue"))
    pace = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}
    (folder / "pace").write_text(_changed(_told(known, "qconf", "-ssconf"), pace))
    _configure(known, "-Msconf", str(folder / "pace"))


def _changed(text: str, values: Mapping[str, str]) -> str:
    """Return the lines of a configuration with these values replaced."""
    lines = [line for line in text.splitlines() if line.split(None, 1)[:1]]
    return "".join(
        f"{line.split(None, 1)[0]} {values[line.split(None, 1)[0]]}\n"
        if line.split(None, 1)[0] in values
        else f"{line}\n"
        for line in lines
    )


def _configure(known: Mapping[str, str], *words: str) -> None:
    """Change the configuration; an entry that already exists is not an error."""
    subprocess.run(
        [_BINARIES / "qconf", *words],
        env=known,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=30,
    )


def _told(known: Mapping[str, str], name: str, *words: str) -> str:
    answer = subprocess.run(
        [_BINARIES / name, *words], env=known, capture_output=True, text=True, check=False, timeout=30
    )
    return answer.stdout


def _queue_is_up(known: Mapping[str, str]) -> bool:
    """Return whether the queue's state column is empty: neither unknown nor in alarm."""
    lines = [line.split() for line in _told(known, "qstat", "-f").splitlines() if line.startswith("all.q@")]
    return bool(lines) and all(len(line) == 5 for line in lines)
