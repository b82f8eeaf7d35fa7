"""Speaking to git-annex-remote-hibali as git-annex does."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.annex import annex_environment


class Conversation:
    """What git-annex says to its special remote and hears from it, line by line."""

    def __init__(
        self, environment: Mapping[str, str], home: Path, location: str, before: Sequence[str] = ()
    ) -> None:
        """`before` are words of a command that runs the special remote, as strace does."""
        self._location = location
        self.process = subprocess.Popen(
            [*before, "git-annex-remote-hibali"],
            env=annex_environment(environment, home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.progress: list[int] = []
        assert self.hear() == "VERSION 1"

    def hear(self) -> str:
        """The next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), self.process.communicate()
        return os.fsdecode(line[:-1])

    def tell(self, line: str) -> None:
        """A request that is answered later, or not at all."""
        assert self.process.stdin is not None
        self.process.stdin.write(os.fsencode(line) + b"\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> str:
        """A request and its answer; what is asked meanwhile is told."""
        self.tell(line)
        while True:
            heard = self.hear()
            if heard == "GETCONFIG location":
                self.tell(f"VALUE {self._location}")
            elif heard.startswith("PROGRESS "):
                self.progress.append(int(heard.partition(" ")[2]))
            elif not heard.startswith(("DEBUG ", "INFO ")):
                return heard

    def kill(self) -> None:
        """As a machine that loses its power does it, but for the agents, which see the end of their client."""
        with self.process:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> bytes:
        """Say goodbye; what it had to say beside the protocol."""
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return errors
