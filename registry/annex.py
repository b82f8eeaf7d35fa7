"""Contents kept by git-annex in the catalogue's own dataset, where git-annex is installed; it runs nothing it is told to by settings."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from hibali.errors import HibaliError
from registry.git import Git, who_commits
from registry.history import History

_UUID = "annex.uuid"
# Settings of a repository can name programs for git-annex to run (git-annex(1), CONFIGURATION).
_SETTINGS = (
    "annex.freezecontent-command=",
    "annex.thawcontent-command=",
    "annex.secure-erase-command=",
    "annex.merge-annex-branches=false",
    "annex.autocommit=true",
    "annex.thin=false",
    "annex.numcopies=1",
)


def annex_program() -> str | None:
    """Where git-annex is: on PATH, or beside the python that runs hibali, where `hibali[annex]` puts it."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return shutil.which("git-annex", path=beside)


class Annex:
    """The annex of a catalogue's dataset, by git-annex's own keys."""

    def __init__(self, git: Git, program: str) -> None:
        self._git = git
        self._program = Path(program)

    def ready(self) -> bool:
        """Whether it can take contents, after it was made where it was not yet.

        False on a filesystem without symlinks, and where the repository has hooks that git-annex would run whatever it is told.
        """
        hooks = self._git.folder / "hooks"
        if hooks.exists() and any(each.name.endswith("-annex") for each in hooks.iterdir()):
            return False
        if self._git.run("config", "--local", _UUID).exit_code != 0:
            self._ask("init", "--quiet", "--no-autoenable", "the catalogue of hibali")
        crippled = self._git.run("config", "--local", "--type=bool", "annex.crippledfilesystem").stdout
        return crippled.strip() != b"true"

    def place(self, key: str) -> Path | None:
        """Where a content lies; None where it is not here."""
        finished = self._run("contentlocation", key)
        found = finished[1].decode("utf-8", "surrogateescape").strip()
        return self._git.folder.parent / found if finished[0] == 0 and found else None

    def keep(self, key: str, file: Path) -> Path:
        """Move a file in as the content of a key; git-annex hashes it once more. Raises `IncompleteError`."""
        self._ask("setkey", key, str(file))
        found = self.place(key)
        assert found is not None, "git-annex says that it took it"
        return found

    def drop(self, key: str) -> None:
        """Forget a content; raises `IncompleteError`."""
        self._ask("dropkey", "--force", key)

    def _ask(self, *words: str) -> None:
        self._git.ask(*self._words(), *words, environment=self._environment())

    def _run(self, *words: str) -> tuple[int, bytes]:
        finished = self._git.run(*self._words(), *words, environment=self._environment())
        return finished.exit_code, finished.stdout

    @staticmethod
    def _words() -> list[str]:
        return [*(word for each in _SETTINGS for word in ("-c", each)), "annex"]

    def _environment(self) -> dict[str, str]:
        path = f"{self._program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**who_commits(), "PATH": path}


def open_annex(history: History | None) -> Annex | None:
    """The annex of a catalogue that has a history; None without one, without git-annex, or where it cannot work."""
    program = annex_program()
    if history is None or program is None:
        return None
    annex = Annex(history.repository(), program)
    try:
        return annex if annex.ready() else None
    except HibaliError:
        return None
