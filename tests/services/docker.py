"""Run a Docker daemon with private storage and a private socket, without network; the machine's daemon is not affected."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import MARK, MissingPackageError, program, start, succeeds, wait_until


@dataclass(frozen=True)
class Docker:
    """A running daemon; docker(1) finds it with `env`."""

    folder: str
    session: str

    @property
    def env(self) -> dict[str, str]:
        """Return the variables that local commands need to reach it."""
        return {"DOCKER_HOST": f"unix://{self.folder}/socket", MARK: f"{self.session}/"}


def start_docker(session: Path, folder: Path) -> Docker:
    """Start dockerd, which starts a containerd; raise `MissingPackageError` without root."""
    client, daemon = program("docker", "docker.io"), program("dockerd", "docker.io")
    program("containerd", "containerd")
    if os.geteuid() != 0:
        raise MissingPackageError("only root can start dockerd")
    folder.mkdir()
    docker = Docker(folder=str(folder), session=str(session))
    # vfs works on every filesystem
    words = [daemon, "--bridge=none", "--iptables=false", "--ip6tables=false", "--storage-driver=vfs"]
    words += [f"--data-root={folder}/data", f"--exec-root={folder}/run", f"--pidfile={folder}/pid"]
    words += [f"--host=unix://{folder}/socket", f"--config-file={folder}/daemon.json"]
    (folder / "daemon.json").write_text("{}\n")
    log = folder / "dockerd.log"
    pid = start(session, words, log)
    environment = {**os.environ, **docker.env, "HOME": str(folder)}
    wait_until(lambda: succeeds([client, "version"], environment), pid, log)
    return docker
