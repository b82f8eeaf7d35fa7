"""Run the jobs of a service's test double at the tests' Slurm, and remember what Slurm said of those that ended."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

from tests.services.processes import SYSTEM_PATH, program
from tests.services.rest import RestDouble
from tests.services.slurm import Slurm

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"})
_OTHER = 900_000  # the first number of jobs that a test adds


class SlurmRefusalError(Exception):
    """sbatch refused a job; with what it said."""


class SlurmJobs:
    """The jobs of one double: those whose work folder is below `reachable`; those of its users are below `home`.

    Attributes:
        forgotten: Jobs that the scheduler no longer has.
        renamed: Jobs with a state that a test wants.
        held: Whether new jobs wait in the queue until an operator releases them.
    """

    def __init__(self, slurm: Slurm, reachable: Path, home: Path) -> None:
        self._slurm = slurm
        self._reachable = reachable
        self._home = home
        self._known: dict[str, dict[str, str]] = {}
        self._guard = threading.Lock()
        self.forgotten: set[str] = set()
        self.renamed: dict[str, str] = {}
        self.held = False

    def submit(self, options: list[str], script: bytes) -> str:
        """Return the id of a new job. Raise `SlurmRefusalError`."""
        held = ["--hold"] if self.held else []
        ended = self._command("sbatch", "--parsable", *held, *options, stdin=script)
        if ended.returncode:
            raise SlurmRefusalError(ended.stderr.decode().strip())
        return ended.stdout.decode().strip()

    def cancel(self, job: str) -> str:
        """End a job, and return the errors that `scancel --verbose` writes: also for a job that has ended, or is unknown."""
        lines = self._command("scancel", "--verbose", job).stderr.decode().splitlines()
        return "\n".join(line for line in lines if "error:" in line)

    def _command(self, *argv: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, "PATH": SYSTEM_PATH, **self._slurm.env}
        argv = (program(argv[0], "slurm-client"), *argv[1:])
        return subprocess.run(argv, env=environment, capture_output=True, check=False, input=stdin)

    def table(self) -> dict[str, dict[str, str]]:
        """Return what Slurm says of each job, by its id."""
        out = self._command("scontrol", "show", "job", "-o").stdout.decode(errors="replace")
        with self._guard:
            for line in out.splitlines():
                record = dict(word.partition("=")[::2] for word in line.split(" ") if "=" in word)
                if "JobId" in record and record.get("WorkDir", "").startswith(str(self._reachable)):
                    self._known[record["JobId"]] = record
            return {job: record for job, record in self._known.items() if job not in self.forgotten}

    def state_of(self, job: str, record: dict[str, str]) -> str:
        """Return the state of a job as its service says it."""
        return self.renamed.get(job, record["JobState"])

    def of_users(self) -> dict[str, dict[str, str]]:
        """Return the same without the jobs of the service itself."""
        return {
            job: record
            for job, record in self.table().items()
            if record["WorkDir"].startswith(str(self._home))
        }

    def running(self) -> list[str]:
        """Return the ids of the users' jobs that have not ended."""
        return [job for job, record in self.of_users().items() if record["JobState"] not in ENDED]

    def wait(self, job: str, seconds: float = 60.0) -> str:
        """Wait until a job has ended, and return its state."""
        until = time.monotonic() + seconds
        while (state := self.table()[job]["JobState"]) not in ENDED and time.monotonic() < until:
            time.sleep(0.1)
        return state

    def add_many(self, count: int) -> None:
        """Let the account have other jobs."""
        for number in range(count):
            job = str(_OTHER + number)
            self._known[job] = {
                "JobId": job,
                "JobName": f"other {number}",
                "JobState": "COMPLETED",
                "WorkDir": str(self._reachable),
            }

    def end_all(self) -> None:
        """End all jobs."""
        self.table()
        if jobs := [job for job in self._known if int(job) < _OTHER]:
            self._command("scancel", "--quiet", *jobs)


class SlurmDouble(RestDouble):
    """A service over Slurm.

    Attributes:
        jobs: The jobs at Slurm.
        hidden: So many of the next lists of jobs are empty.
    """

    jobs: SlurmJobs
    hidden = 0

    def hide(self, *, times: int) -> None:
        """Let so many of the next lists lack all jobs."""
        self.hidden = times

    def listed(self, table: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        """Return what a list of jobs shows, and count it if it is one that lacks all."""
        if self.hidden > 0 and table:
            self.hidden -= 1
            return {}
        return table

    def names(self) -> list[str]:
        """Return the names of the users' jobs."""
        return [record["JobName"] for record in self.jobs.of_users().values()]

    def running(self) -> list[str]:
        """Return the ids of those that have not ended."""
        return self.jobs.running()

    def close(self) -> None:
        self.jobs.end_all()
        super().close()
