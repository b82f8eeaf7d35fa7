"""Start tools in podman-hpc of NERSC, a wrapper of Podman (its README and sources, 1.2.2, June 2026).

Compute nodes read images only from `SQUASH_DIR` (`$SCRATCH/storage`), where `migrate` stores them as SquashFS; the store that `load`
and `pull` fill is in /tmp of one node.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from registry.images.record import is_among
from runs.containers.base import Image, Task, read_inspected
from runs.containers.podman import Podman
from transfers.remote.host import CommandResult

# `migrate` ends with 0 even if it fails, after it logged an error
_MIGRATE = 'out=$(podman-hpc migrate "$1" 2>&1) || exit\ncase $out in *ERROR:*) printf "%s\\n" "$out" >&2; exit 1 ;; esac'


class PodmanHpc(Podman):
    """Docker images, loaded and migrated once. Each MPI task has its own container, as in Podman.

    The site's modules are not used, except for GPUs: that for MPI starts a privileged container.
    """

    name = "podman-hpc"
    programs = ("podman-hpc",)
    # its hook, which runs on the node, takes the folder of its configuration and the name of its log from the image's variables
    confines = False
    gpus = frozenset({"nvidia"})
    gpu_options = {"": (), "nvidia": ()}  # noqa: RUF012

    def run_argv(self, task: Task) -> list[str]:
        """Return the command and the options of the wrapper, which it would else find among the tool's arguments, too."""
        return ["podman-hpc", "run", *(("--gpu",) if task.gpus else ()), "--"]

    def image_argv(self, name: str) -> tuple[str, ...]:
        """List the migrated images; `image inspect` sees only those of the login node."""
        del name
        return ("podman-hpc", "images", "--filter=readonly=true", "--no-trunc", "--format=json")

    def read_image(self, finished: CommandResult, name: str) -> Image | None:
        """Find the image by id, digest or name."""
        try:
            listed = [each for each in json.loads(finished.stdout or b"[]") if _is_called(each, name)]
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return read_inspected(self.name, finished)
        if not listed and finished.exit_code == 0:
            return None
        return read_inspected(self.name, replace(finished, stdout=json.dumps(listed[:1]).encode()))

    def convert_argv(self, archive: str, result: str, kind: str, image: str) -> tuple[tuple[str, ...], ...]:
        """Load an archive, and migrate the image by its id."""
        load = super().convert_argv(archive, result, kind, image)
        return (*load, ("sh", "-c", _MIGRATE, "podman-hpc", image))

    def version_argv(self) -> tuple[str, ...]:
        """Return the command that prints the version; `--version` is no option of the wrapper."""
        return ("podman-hpc", "infohpc")


def _is_called(listed: Any, name: str) -> bool:
    """Return whether an entry of `podman images` is the image of this name, or of the id or digest at its end."""
    digest = name.rpartition("@")[2]
    if digest.startswith("sha256:"):
        known = f"sha256:{listed['Id']} {listed.get('Digest')} {listed.get('RepoDigests')}"
        return digest in known
    return is_among(name, listed.get("Names") or ())


CONTAINER = PodmanHpc()
