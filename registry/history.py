"""The history of a catalogue: a DataLad dataset in which every change is a commit."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from hibali.errors import IncompleteError
from hibali.ledger import write_atomic
from hibali.retry import pause
from hibali.text import printable
from registry.git import Git, who_commits

BRANCH = "refs/heads/main"
_TRIES = 100  # commits that others make at the same time are joined so often
_ATTRIBUTES = (
    b"* annex.backend=SHA256E\n*.json annex.largefiles=nothing\n.gitattributes annex.largefiles=nothing\n"
)


class History:
    """Commits of what lies in a folder. The folder is the truth: what a killed call left unrecorded, the next one records.

    A commit is made beside the index and moved into place by one update of the branch, so that the index is never locked.
    """

    def __init__(self, folder: Path, partial: Callable[[], Path]) -> None:
        """`partial` gives a folder beside it, on the same filesystem, for what is not finished yet."""
        self._folder = folder
        self._partial = partial
        self._git = Git(folder / ".git", folder)

    def record(self, message: str) -> None:
        """One commit of all that changed; none where nothing did. Raises `IncompleteError`, `NotFoundError` without git."""
        self.repository()
        for _ in range(_TRIES):
            if self._commit(message):
                return
            pause(secrets.randbelow(100) / 1000)
        raise IncompleteError(
            "history-busy",
            "another process keeps changing the history, or was killed while it did",
            about=str(self._folder),
            hint=f"If none is at work: rm {self._git.folder}/{BRANCH}.lock; then type the same line again.",
        )

    def repository(self) -> Git:
        """What git keeps it in, made where there is none yet; raises like `record`."""
        if not (self._git.folder / "HEAD").exists():
            self._begin()
        return self._git

    def _begin(self) -> None:
        """A repository that appears whole; of two that begin at once one wins."""
        partial = self._partial() / secrets.token_hex(16)
        try:
            Git(partial).ask("init", "-q", "--template=", "-b", "main", str(partial))
            Git(partial).ask("config", "core.bare", "false")
            with contextlib.suppress(OSError):
                partial.rename(self._folder / ".git")
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        (self._folder / ".datalad").mkdir(mode=0o700, exist_ok=True)
        identity = f'[datalad "dataset"]\n\tid = {uuid.uuid4()}\n'
        for name, content in ((".datalad/config", identity.encode()), (".gitattributes", _ATTRIBUTES)):
            if not (self._folder / name).exists():
                write_atomic(self._folder / name, content)

    def _commit(self, message: str) -> bool:
        """Whether all that lies there is recorded now; False where another process was first."""
        index = self._partial() / secrets.token_hex(16)
        apart = {"GIT_INDEX_FILE": str(index)}
        try:
            with contextlib.suppress(OSError):
                shutil.copyfile(
                    self._git.folder / "index", index
                )  # what it knows of files saves reading them
            self._git.ask("add", "--all", "--", ".", environment=apart)
            tree = self._git.ask("write-tree", environment=apart).decode().strip()
            known = self._head()
            if known[1:] != [tree]:
                head = known[:1]
                parents = [word for each in head for word in ("-p", each)]
                words = ["commit-tree", tree, *parents, "-F", "-"]
                commit = (
                    self._git.ask(*words, stdin=message.encode(), environment=who_commits()).decode().strip()
                )
                moved = self._git.run("update-ref", BRANCH, commit, *(head or ["0" * 40]))
                if moved.exit_code != 0:
                    return self._again(head, moved.stderr)
            index.replace(self._git.folder / "index")
            return True
        finally:
            index.unlink(missing_ok=True)

    def _head(self) -> list[str]:
        """The last commit and its tree; nothing before the first."""
        return self._git.ask("for-each-ref", "--format=%(objectname) %(tree)", BRANCH).decode().split()

    def _again(self, head: list[str], said: bytes) -> bool:
        """False where the branch moved meanwhile, or is being moved; raises where that is not why it could not be."""
        now = self._head()[:1]
        if now == head and b"cannot lock ref" not in said:
            raise IncompleteError(
                "git-failed",
                f"the history cannot be written: {printable(said.strip())}",
                about=str(self._folder),
            )
        return False
