"""Start tools in Podman 4 (podman-run(1))."""

from __future__ import annotations

from runs.containers.base import DOCKER_ARCHIVE, OCI_ARCHIVE
from runs.containers.docker import Docker


class Podman(Docker):
    """Docker images, started without a daemon."""

    name = "podman"
    programs = ("podman",)
    formats = frozenset({DOCKER_ARCHIVE, OCI_ARCHIVE})
    read_only = "ro=true"
    options = ("--http-proxy=false",)
    # Rootless, the user has the same uid in the container; root has no such mapping and runs as root without capabilities.
    user_lines = 'if [ "$(id -u)" = 0 ]; then set -- --user=0:0; else set -- --userns=keep-id; fi\n'
    # NVIDIA by the Container Device Interface; the account can use AMD's devices through its groups, which crun keeps.
    gpu_options = {  # noqa: RUF012
        "": (),
        "nvidia": ("--device=nvidia.com/gpu=all",),
        "amd": ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups"),
    }
    id_prefix = ""
    inspect_options = ("--format=json",)


CONTAINER = Podman()
