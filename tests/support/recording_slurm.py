"""Run a login node for one test, which records every Slurm command and every login."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import SYSTEM_PATH, end_all
from tests.services.slurm import Slurm
from tests.services.sshd import SshServer, start_sshd

_WORDS = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo")


@dataclass(frozen=True)
class RecordingSlurm:
    """An sshd whose Slurm commands are wrappers around the real ones that record each call."""

    server: SshServer
    call_log: Path
    session_log: Path

    def commands(self) -> list[tuple[float, str]]:
        """Return the time of each call (seconds since the epoch), and the command's name."""
        return _read(self.call_log)

    def sessions(self) -> list[tuple[float, str]]:
        """Return when each session began, and over which connection."""
        return _read(self.session_log)

    @property
    def logins(self) -> int:
        """The number of logins."""
        return sum("Accepted publickey" in line for line in self.server.log.read_text().splitlines())

    def table(self, work: Path, limits: str) -> str:
        """Return the site's table without its header; its name is `cluster`."""
        words = ", ".join(f'"{word}"' for word in self.server.command)
        return (
            f'kind = "ssh"\nwork = "{work}"\n[sites.cluster.ssh]\nhost = "{self.server.host}"\ncommand = [{words}]\n'
            f'[sites.cluster.scheduler]\nname = "slurm"\ndirectives = ["--mem=50"]\n[sites.cluster.limits]\n{limits}'
        )


def _read(path: Path) -> list[tuple[float, str]]:
    lines = path.read_text().splitlines() if path.exists() else []
    parts = (line.partition(" ") for line in lines)
    return [(float(seconds), text) for seconds, _, text in parts]


@contextmanager
def recording_slurm(folder: Path, slurm: Slurm) -> Iterator[RecordingSlurm]:
    """Start the login node in `folder`; at the end stop it with its processes, except jobs."""
    session = folder / "counted"
    programs = session / "programs"
    programs.mkdir(parents=True)
    call_log, session_log = session / "call_log", session / "session_log"
    for name in _WORDS:
        real = shutil.which(name, path=SYSTEM_PATH)
        wrapper = programs / name
        wrapper.write_text(f'#!/bin/sh\necho "$(date +%s.%N) {name}" >>{call_log}\nexec {real} "$@"\n')
        wrapper.chmod(0o755)
    environment = {"SLURM_CONF": slurm.conf, "PATH": f"{programs}:{SYSTEM_PATH}"}
    try:
        server = start_sshd(session, session / "ssh", environment)
        with (server.home / ".bashrc").open("a") as start_up:  # Debian's bash reads it under sshd
            start_up.write(f'echo "$(date +%s.%N) $SSH_CONNECTION" >>{session_log}\n')
        yield RecordingSlurm(server, call_log, session_log)
    finally:
        end_all(session)
