"""Run the real Snakemake with hibali's plugins, and a site whose logins are counted."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.processes import end_all
from tests.services.session import REPOSITORY
from tests.services.sshd import SshServer, start_sshd
from tests.support.requirements import require_prepared

ENVIRONMENT = REPOSITORY / ".cache" / "snakemake"
PLUGINS = ("storage", "executor")


def site_python(folder: Path) -> Path:
    """Write the program that is Python with Snakemake and the plugins at a site, and return its path."""
    path = folder / "site-python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={plugin_path()} exec {ENVIRONMENT}/bin/python "$@"\n')
    path.chmod(0o755)
    return path


def plugin_path(*kinds: str) -> str:
    """Return PYTHONPATH for hibali and its plugins; Snakemake's environment has the packages that they need."""
    folders = [REPOSITORY / "packaging" / f"snakemake-{kind}-plugin-hibali" for kind in kinds or PLUGINS]
    return os.pathsep.join(map(str, (REPOSITORY, *folders)))


@dataclass(frozen=True)
class Snakemake:
    """Snakemake in a folder with a Snakefile."""

    folder: Path
    env: dict[str, str]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start it in a process group of its own."""
        argv = [str(ENVIRONMENT / "bin" / "snakemake"), "--nocolor", *words]
        return subprocess.Popen(
            argv,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str, exit: int = 0, timeout: float = 600) -> str:  # noqa: A002 - as the fixture `hibali` has it
        """Run it, check its exit code, and return what it printed."""
        process = self.start(*words)
        printed, _ = process.communicate(timeout=timeout)
        assert process.returncode == exit, printed
        return printed


def snakemake_in(hibali: Any, snakefile: str) -> Snakemake:
    """Return Snakemake in a new folder of the test, with the test's sites; skip the test where it is not prepared."""
    require_prepared(ENVIRONMENT / "bin" / "snakemake", "snakemake")
    folder = hibali.home.folder / "workflow"
    folder.mkdir()
    (folder / "Snakefile").write_text(snakefile)
    path = f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}"
    return Snakemake(folder, {**hibali.env, "PATH": path, "PYTHONPATH": plugin_path()})


@dataclass(frozen=True)
class CountedSite:
    """The ssh site `there`: its folder `root` is where relative paths begin."""

    server: SshServer
    root: Path

    @property
    def logins(self) -> int:
        """The number of logins."""
        return self.server.log.read_text().count("Accepted publickey")

    def table(self) -> str:
        """Return the site's table."""
        return (
            f'kind = "ssh"\ndefault_root = "data"\nwork = {json.dumps(str(self.root / "work"))}\n'
            f"[sites.there.roots]\ndata = {json.dumps(str(self.root))}\n"
            '[sites.there.scheduler]\nname = "direct"\n[sites.there.limits]\npoll = "2s"\nqueued_jobs = 8\n'
            f'[sites.there.ssh]\nhost = "{self.server.host}"\ncommand = {json.dumps(self.server.command)}\n'
        )


@contextmanager
def counted_site(folder: Path) -> Iterator[CountedSite]:
    """Start an sshd of its own for a site; end it with its processes."""
    session, root = folder / "counted", folder / "there"
    session.mkdir()
    root.mkdir()
    try:
        server = start_sshd(session, session / "ssh")
        (
            server.home / ".bashrc"
        ).unlink()  # Debian's bash reads it under sshd: the shells of rules would change folders
        yield CountedSite(server, root)
    finally:
        end_all(session)
