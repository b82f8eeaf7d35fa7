"""Control git-annex-remote-hibali with git-annex's external special remote protocol."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.annex import annex_environment


class AnnexRemoteClient:
    """Send requests to the special remote as git-annex does, line by line."""

    def __init__(
        self, environment: Mapping[str, str], home: Path, location: str, before: Sequence[str] = ()
    ) -> None:
        """Start the remote; `before` is a wrapper command with its arguments, such as strace."""
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
        assert self.read_line() == "VERSION 1"

    def read_line(self) -> str:
        """Read the next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), self.process.communicate()
        return os.fsdecode(line[:-1])

    def send(self, line: str) -> None:
        """Send a request without waiting for an answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(os.fsencode(line) + b"\n")
        self.process.stdin.flush()

    def request(self, line: str) -> str:
        """Send a request, answer the remote's own requests meanwhile, and return its answer."""
        self.send(line)
        while True:
            line_read = self.read_line()
            if line_read == "GETCONFIG location":
                self.send(f"VALUE {self._location}")
            elif line_read.startswith("PROGRESS "):
                self.progress.append(int(line_read.partition(" ")[2]))
            elif not line_read.startswith(("DEBUG ", "INFO ")):
                return line_read

    def kill(self) -> None:
        """Kill the processes as a power failure does, except agents, whose connection closes."""
        with self.process:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> bytes:
        """Close the connection; return the remote's output outside the protocol."""
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return errors
