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
