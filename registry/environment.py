"""Which variables a pipeline may set (S10)."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED = re.compile(
    r"LD_.*|BASH_ENV|ENV|SHELLOPTS|BASHOPTS|PS4|IFS|PYTHON.*|HIBALI_.*"  # how programs and shells start
    r"|APPTAINER.*|SINGULARITY.*|DOCKER_.*|PODMAN_.*|CONTAINERS_.*|CH_.*|SARUS_.*|SHIFTER.*"  # what runtimes read
    r"|SLURM_.*|SBATCH_.*|SRUN_.*|OAR_.*|PBS_.*|SGE_.*|LSB_.*",  # what schedulers say and read
    re.DOTALL,
)


def is_safe_variable(name: str) -> bool:
    """Whether it is the name of a variable, and of one that does not change how programs are started."""
    return _NAME.fullmatch(name) is not None and _REFUSED.fullmatch(name) is None
