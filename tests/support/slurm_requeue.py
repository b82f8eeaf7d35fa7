"""Requeue Slurm jobs, as an administrator does, and lose a node."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.services.processes import start


def _succeeds(slurm: Any, *words: str) -> bool:
    environment = {**os.environ, **slurm.env}
    return (
        subprocess.run(["scontrol", *words], env=environment, check=False, capture_output=True).returncode
        == 0
    )


def requeue_job(slurm: Any, job: str) -> None:
    """Requeue a job, and wait until the second in which it ended is over.

    slurmd counts in whole seconds, and kills a job that starts in the second in which it ended.
    """
    assert _succeeds(slurm, "update", f"JobId={job}", "Requeue=1")
    assert _succeeds(slurm, "requeue", job)
    time.sleep(2)


def start_job_now(slurm: Any, job: str) -> bool:
    """Remove Slurm's delay of two minutes before the job starts again; return False while the job still runs."""
    return _succeeds(slurm, "update", f"JobId={job}", "StartTime=now")


class LostNode:
    """A node whose slurmd can be killed, as where its network is cut off or it has no power; leaving starts it again."""

    def __init__(self, slurm: Any, name: str) -> None:
        self._slurm = slurm
        self._name = name
        self._argv: list[str] = []

    def lose(self, processes: Iterable[int]) -> None:
        """Kill slurmd, its steps and these processes of jobs, and let Slurm know that the node is down.

        Slurm would notice by itself after SlurmdTimeout.
        """
        folder = Path(self._slurm.conf).parent
        slurmd = int((folder / f"slurmd-{self._name}.pid").read_text())
        self._argv = Path(f"/proc/{slurmd}/cmdline").read_bytes().decode().split("\0")[:-1]
        steps = subprocess.run(["pgrep", "slurmstepd"], capture_output=True, text=True, check=False)
        own = [int(pid) for pid in steps.stdout.split() if self._belongs(int(pid), folder)]
        for pid in (slurmd, *own, *processes):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert _succeeds(self._slurm, "update", f"NodeName={self._name}", "State=DOWN", "Reason=lost")

    def _belongs(self, pid: int, folder: Path) -> bool:
        with suppress(OSError):
            return str(folder).encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._argv:
            folder = Path(self._slurm.conf).parent
            log = folder / f"slurmd-{self._name}.log"
            start(folder.parent, self._argv, log, {"SLURM_CONF": self._slurm.conf})
            _succeeds(self._slurm, "update", f"NodeName={self._name}", "State=RESUME")
