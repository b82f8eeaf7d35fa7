"""Run git-annex from the tests' environment, found on the PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.requirements import skip_or_fail


def annex_environment(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return `environment` with git, git-annex and its special remotes on the PATH, without user
    configuration.

    Skips the test without git-annex.
    """
    path = f"{Path(sys.executable).parent}:{environment.get('PATH', os.defpath)}"
    if shutil.which("git-annex", path=path) is None:
        skip_or_fail("git-annex is missing: install the Python package git-annex")
    identity = {
        f"GIT_{role}_{part}": "tester" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")
    }
    return {**environment, **identity, "PATH": path, "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True)
class AnnexRepository:
    """A repository; `git` runs in it: `repository.run("annex", "add", ".")`."""

    folder: Path
    env: dict[str, str]

    def run_unchecked(self, *words: str | bytes, timeout: float = 120) -> subprocess.CompletedProcess[bytes]:
        """Run git and return the completed process, with any exit code."""
        return subprocess.run(
            ["git", *words],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=timeout,
        )

    def run(self, *words: str | bytes, timeout: float = 120) -> bytes:
        """Return the output of git; fail the test if git fails."""
        ended = self.run_unchecked(*words, timeout=timeout)
        assert ended.returncode == 0, f"git {words}\n{ended.stdout.decode()}\n{ended.stderr.decode()}"
        return ended.stdout

    def key_of(self, name: str) -> str:
        """Return the key of an annexed file."""
        return self.run("annex", "lookupkey", "--", name).decode().strip()


def make_repository(folder: Path, environment: Mapping[str, str], home: Path) -> AnnexRepository:
    """Create an empty repository."""
    folder.mkdir(parents=True)
    repository = AnnexRepository(folder, annex_environment(environment, home))
    repository.run("init", "--quiet")
    repository.run("annex", "init", "--quiet", "here")
    return repository
