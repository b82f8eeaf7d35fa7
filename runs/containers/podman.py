"""Start tools in Podman 4 (podman-run(1))."""

from __future__ import annotations

from registry.pipeline import Container as Wanted
from runs.containers.base import (
    DOCKER_ARCHIVE,
    OCI_ARCHIVE,
    Container,
    Image,
    Task,
    alone_or_together,
    docker_name,
    handed_on,
    mount_option,
    quoted,
    read_inspected,
)
from transfers.remote.host import CommandResult

# Rootless, the user has the same uid in the container; root has no such mapping and runs as root without capabilities.
_OWN_USER = """\
if [ "$(id -u)" = 0 ]; then set -- --user=0:0; else set -- --userns=keep-id; fi
"""
_PRIVATE = "bind-propagation=rprivate"
# NVIDIA by the Container Device Interface; the account can use AMD's devices through its groups, which crun keeps (podman-run(1)).
_GPUS = {
    "": [],
    "nvidia": ["--device=nvidia.com/gpu=all"],
    "amd": ["--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups"],
}


class Podman(Container):
    """Docker images, started without a daemon."""

    name = "podman"
    programs = ("podman",)
    confines = True
    formats = frozenset({DOCKER_ARCHIVE, OCI_ARCHIVE})
    gpus = frozenset({"nvidia", "amd"})

    def image_name(self, wanted: Wanted | None) -> str:
        """Return Docker's name of an image."""
        return docker_name(self.name, wanted)

    def start(self, task: Task) -> str:
        """Return one long line; mounts are CSV, so that paths may contain any character."""
        argv = [
            "podman",
            "run",
            "--rm",
            *alone_or_together(task),
            "--pull=never",
            "--cap-drop=all",
            "--security-opt=no-new-privileges",
            "--http-proxy=false",
            "--log-driver=none",
            f"--workdir={task.sees_work}",
            mount_option(task.work, task.sees_work, _PRIVATE),
        ]
        if task.argv is None:
            argv.append(mount_option(task.command, task.command, _PRIVATE, "ro=true"))
            argv.append(f"--entrypoint={task.shell}")
        argv += [mount_option(bind.source, bind.target, _PRIVATE, "ro=true") for bind in task.binds]
        if task.memory and task.tasks == 1:
            argv.append(f"--shm-size={task.memory}")
        argv += _GPUS[task.gpus]
        environment = {"HOME": task.sees_work, **task.environment}
        argv += [f"--env={name}={value}" for name, value in environment.items()]
        after = [task.image, *((task.command,) if task.argv is None else task.argv)]
        known = handed_on(task, 'set -- "$@" "--env=$name=$value"')
        return f'{_OWN_USER}{known}exec {quoted(argv)} "$@" {quoted(after)}'

    def image_argv(self, name: str) -> tuple[str, ...]:
        """Return `inspect`, which queries local images and pulls nothing."""
        return ("podman", "image", "inspect", "--format=json", name)

    def read_image(self, finished: CommandResult, name: str) -> Image | None:
        """Parse the output of `inspect`."""
        del name
        return read_inspected(self.name, finished)

    def convert_argv(self, archive: str, result: str, kind: str, image: str) -> tuple[tuple[str, ...], ...]:
        """Load a Docker or OCI archive."""
        del result, kind, image
        return (("podman", "load", "--quiet", f"--input={archive}"),)


CONTAINER = Podman()
