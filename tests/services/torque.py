"""Provide Torque's commands by Slurm's wrappers: qsub, qstat, qdel and qrls of slurm-wlm-torque.

The package conflicts with Grid Engine's client, so `tests/prepare.sh torque` only unpacks it.
"""

from __future__ import annotations

from tests.services.processes import SYSTEM_PATH, MissingPackageError, program
from tests.services.session import REPOSITORY

UNPACKED = REPOSITORY / ".cache" / "torque" / "usr" / "bin"


def torque_environment() -> dict[str, str]:
    """Return a PATH on which they come first; they look for sbatch in their own folder."""
    if not (UNPACKED / "qsub").exists():
        raise MissingPackageError("Slurm's qsub is missing: sh tests/prepare.sh torque")
    sbatch = program("sbatch", "slurm-client")
    if not (UNPACKED / "sbatch").exists():
        (UNPACKED / "sbatch").symlink_to(sbatch)
    return {"PATH": f"{UNPACKED}:{SYSTEM_PATH}"}
