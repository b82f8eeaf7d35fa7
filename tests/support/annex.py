"""git-annex as a user has it: on the PATH, from the environment that the tests run in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.lacking import lacks


def annex_environment(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """`environment` with git, git-annex and its special remotes at hand, and nobody's configuration; lacks a git-annex: skips."""
    path = f"{Path(sys.executable).parent}:{environment.get('PATH', os.defpath)}"
    if shutil.which("git-annex", path=path) is None:
        lacks("git-annex is missing: install the Python package git-annex")
    named = {f"GIT_{who}_{what}": "tester" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {**environment, **named, "PATH": path, "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True)
class AnnexRepository:
    """A repository, and `git` in it: `repository.run("annex", "add", ".")`."""

    folder: Path
    env: dict[str, str]

    def ended(self, *words: str | bytes, timeout: float = 120) -> subprocess.CompletedProcess[bytes]:
        """Run git to its end, whatever that is."""
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
        """What git prints; it has to succeed."""
        ended = self.ended(*words, timeout=timeout)
        assert ended.returncode == 0, f"git {words}\n{ended.stdout.decode()}\n{ended.stderr.decode()}"
        return ended.stdout

    def key_of(self, name: str) -> str:
        """The key of an annexed file."""
        return self.run("annex", "lookupkey", "--", name).decode().strip()


def make_repository(folder: Path, environment: Mapping[str, str], home: Path) -> AnnexRepository:
    """A new one, empty."""
    folder.mkdir(parents=True)
    repository = AnnexRepository(folder, annex_environment(environment, home))
    repository.run("init", "--quiet")
    repository.run("annex", "init", "--quiet", "here")
    return repository
