"""The commands of Torque as Slurm's wrappers have them: qsub, qstat, qdel and qrls of slurm-wlm-torque.

The package cannot be installed beside Grid Engine's client, so `tests/prepare.sh torque` only unpacks it.
"""

from __future__ import annotations

from tests.services.processes import SYSTEM_PATH, MissingPackageError, program
from tests.services.session import REPOSITORY

UNPACKED = REPOSITORY / ".cache" / "torque" / "usr" / "bin"


def torque_environment() -> dict[str, str]:
    """The PATH on which they come first; they look for sbatch beside themselves."""
    if not (UNPACKED / "qsub").exists():
        raise MissingPackageError("Slurm's qsub is missing: sh tests/prepare.sh torque")
    sbatch = program("sbatch", "slurm-client")
    if not (UNPACKED / "sbatch").exists():
        (UNPACKED / "sbatch").symlink_to(sbatch)
    return {"PATH": f"{UNPACKED}:{SYSTEM_PATH}"}
