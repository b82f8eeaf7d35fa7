"""Jobs that are put back into Slurm's queue, as an administrator does."""

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
    """Let the job end and wait for another turn; slurmd counts in seconds: what begins in that of its end is killed already."""
    assert _succeeds(slurm, "update", f"JobId={job}", "Requeue=1")
    assert _succeeds(slurm, "requeue", job)
    time.sleep(2)


def is_let_begin(slurm: Any, job: str) -> bool:
    """Let it begin now; false until it has ended. Slurm would hold it back for two minutes."""
    return _succeeds(slurm, "update", f"JobId={job}", "StartTime=now")
