"""Requeue Slurm jobs, as an administrator does."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any


def _succeeds(slurm: Any, *words: str) -> bool:
    environment = {**os.environ, **slurm.env}
    return (
        subprocess.run(["scontrol", *words], env=environment, check=False, capture_output=True).returncode
        == 0
    )


def put_back(slurm: Any, job: str) -> None:
    """Requeue a job, and wait until the second in which it ended has passed.

    slurmd counts in whole seconds, and kills a job that starts in the second in which it ended.
    """
    assert _succeeds(slurm, "update", f"JobId={job}", "Requeue=1")
    assert _succeeds(slurm, "requeue", job)
    time.sleep(2)


def is_let_begin(slurm: Any, job: str) -> bool:
    """Let the job start now; false until it has ended. Slurm would delay it by two minutes."""
    return _succeeds(slurm, "update", f"JobId={job}", "StartTime=now")
