"""Share servers between all workers of a test session; the first worker that needs a server starts it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.services.ceph import start_ceph
from tests.services.docker import Docker, start_docker
from tests.services.forced_command import start_automation_node, start_forced_command
from tests.services.fsspec_servers import CloudServer, start_azurite, start_gcs, start_hdfs, start_xrootd
from tests.services.globus import GlobusServer, start_globus
from tests.services.grid import Grid, start_grid
from tests.services.mounts import unmount_below
from tests.services.oar import Oar, start_oar
from tests.services.object_store import ObjectStore, end_object_store, start_object_store
from tests.services.openpbs import start_openpbs
from tests.services.podman import Podman, end_podman, start_podman
from tests.services.processes import MissingPackageError, ServiceError, end_all, start, start_time
from tests.services.rclone_s3 import start_rclone_s3
from tests.services.sge import GridEngine, start_sge
from tests.services.slurm import Node, Slurm, start_slurm
from tests.services.slurmrestd import Slurmrestd, start_slurmrestd
from tests.services.sshd import (
    SshServer,
    start_certificate_sshd,
    start_other_account_sftp,
    start_password_sshd,
    start_sftp_gateway,
    start_sshd,
    start_sshd_with_shell,
    start_unprivileged_sftp,
)
from tests.services.swift import start_swift
from tests.services.webdav import DavServer, start_apache, start_lighttpd, start_wsgidav
from transfers.remote.connection import forced_command_script

PREFIX = "hib-"  # short, because a socket's path has at most 108 bytes
ENOUGH_MEMORY = 4 << 30
REPOSITORY = Path(__file__).resolve().parents[2]

Start = Callable[[Path, Path], Any]
SERVICES: dict[str, tuple[type, Start]] = {
    "ssh": (SshServer, start_sshd),
    "ssh-password": (SshServer, start_password_sshd),
    "ssh-certificate": (SshServer, start_certificate_sshd),
    "sftp": (SshServer, start_sftp_gateway),
    "sftp-other-account": (SshServer, start_other_account_sftp),
    "sftp-unprivileged": (SshServer, start_unprivileged_sftp),
    # without OpenSSH's extensions, like other servers
    "sftp-plain": (
        SshServer,
        lambda session, folder: start_sftp_gateway(
            session, folder, "-P posix-rename,hardlink,fsync,statvfs,fstatvfs,lsetstat,limits"
        ),
    ),
    "automation-node": (
        SshServer,
        lambda session, folder: start_automation_node(session, folder, ensure(session, "slurm").conf),
    ),
    "automation-node-files": (SshServer, lambda session, folder: start_automation_node(session, folder, "")),
    "forced-command": (
        SshServer,
        lambda session, folder: start_forced_command(
            session, folder, ensure(session, "slurm").conf, forced_command_script("python3")
        ),
    ),
    "slurm": (Slurm, start_slurm),
    "slurm-accounting": (Slurm, lambda session, folder: start_slurm(session, folder, accounting=True)),
    **{
        f"slurmrestd{more}": (
            Slurmrestd,
            lambda session, folder, more=more: start_slurmrestd(
                session, folder, ensure(session, f"slurm{more}")
            ),
        )
        for more in ("", "-accounting")
    },
    "slurm-two-nodes": (
        Slurm,
        lambda session, folder: start_slurm(
            session, folder, nodes=(Node("first", "127.0.0.1"), Node("second", "127.0.0.1"))
        ),
    ),
    "oar": (Oar, start_oar),
    "sge": (GridEngine, start_sge),
    "pbs": (SshServer, start_openpbs),
    "object-store": (ObjectStore, start_object_store),
    "rclone-s3": (ObjectStore, start_rclone_s3),
    "swift": (ObjectStore, start_swift),
    "ceph": (ObjectStore, start_ceph),
    "podman": (Podman, start_podman),
    "docker": (Docker, start_docker),
    "globus": (GlobusServer, start_globus),
    "grid": (Grid, start_grid),
    "gcs": (CloudServer, start_gcs),
    "azurite": (CloudServer, start_azurite),
    "hdfs": (CloudServer, start_hdfs),
    "xrootd": (CloudServer, start_xrootd),
    "xrootd-second": (CloudServer, start_xrootd),
    "xrootd-without-copies": (
        CloudServer,
        lambda session, folder: start_xrootd(session, folder, copies=False),
    ),
    "webdav": (DavServer, start_apache),
    "webdav-plain": (DavServer, start_wsgidav),
    "webdav-lighttpd": (DavServer, start_lighttpd),
    **{
        f"shell-{shell}": (
            SshServer,
            lambda session, folder, shell=shell: start_sshd_with_shell(session, folder, shell),
        )
        for shell in ("sh", "bash", "tcsh", "fish")
    },
}


def scratch_folder() -> Path:
    """Return /dev/shm if it has enough space, allows executables and lets other accounts in, as munge requires, else the temporary folder."""
    memory = Path("/dev/shm")
    with contextlib.suppress(OSError):
        found = os.statvfs(memory)
        is_fit = found.f_bavail * found.f_frsize >= ENOUGH_MEMORY and not found.f_flag & os.ST_NOEXEC
        if is_fit and memory.stat().st_mode & stat.S_IXOTH:
            return memory
    return Path(tempfile.gettempdir())


def new_session() -> Path:
    """Create a private folder for one session's servers, after removing those of dead sessions."""
    scratch = scratch_folder()
    for left in scratch.glob(f"{PREFIX}*"):
        if _is_abandoned(left):
            end_session(left)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=scratch))
    prepare_session(folder)
    return folder


def prepare_session(folder: Path) -> None:
    """Prepare a folder for a session that ends with this process."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)  # munge requires its socket to be accessible to all users
    for name in ("r", "t"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    (folder / "owner").write_text(f"{os.getpid()} {start_time(os.getpid())}")


def ensure(session: Path, name: str) -> Any:
    """Return the running server of that name, and start it if necessary.

    Raises `MissingPackageError` or `ServiceError`; later calls raise the error of the first attempt again.
    """
    kind, start_service = SERVICES[name]
    ready, failed = session / f"{name}.json", session / f"{name}.failed"
    with _locked(session / f"{name}.lock"):
        if ready.exists():
            return kind(**json.loads(ready.read_text()))
        if failed.exists():
            what, _, reason = failed.read_text().partition(" ")
            raise (MissingPackageError if what == "missing" else ServiceError)(reason)
        _guard(session)
        try:
            server = start_service(session, session / name)
        except (MissingPackageError, ServiceError) as problem:
            what = "missing" if isinstance(problem, MissingPackageError) else "broken"
            failed.write_text(f"{what} {problem}")
            raise
        ready.write_text(json.dumps(asdict(server)))
        return server


def end_session(session: Path) -> None:
    """End every server of the session and their child processes, and remove the folder."""
    if not session.is_dir():
        return
    end_podman(session)
    end_all(session)
    unmount_below(session)  # dockerd mounts its storage
    end_object_store(session)
    shutil.rmtree(session, ignore_errors=True)


def guard(session: Path, pid: int) -> None:
    """Wait until the session's owner ends, even by a crash, and clean up after it."""
    with contextlib.suppress(ProcessLookupError):
        watched = os.pidfd_open(pid)
        select.select([watched], [], [])
    end_session(session)


def _guard(session: Path) -> None:
    """Start the session's guard process once, unless the session was started by `up`."""
    owner, guarded = session / "owner", session / "guarded"
    with _locked(session / "guard.lock"):
        if guarded.exists() or not owner.exists():
            return
        pid = owner.read_text().split()[0]
        words = [sys.executable, "-m", "tests.services", "guard", session, pid]
        start(session, words, session / "guard.log", {"PYTHONPATH": str(REPOSITORY)})
        guarded.touch()


def _is_abandoned(folder: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            pid, began = (folder / "owner").read_text().split()
            return start_time(int(pid)) != began
    return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
