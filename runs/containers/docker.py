"""Start tools in Docker 20.10 and later (docker-run(1))."""

from __future__ import annotations

from registry.pipeline import Container as Wanted
from runs.containers.base import (
    DOCKER_ARCHIVE,
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

_PRIVATE = "bind-propagation=rprivate"
# docker-run(1) for NVIDIA's toolkit; the devices are those of ROCm's guide for containers.
_GPUS = {
    "": [],
    "nvidia": ["--gpus=all"],
    "amd": ["--device=/dev/kfd", "--device=/dev/dri", "--group-add=video"],
}


class Docker(Container):
    """Docker images, started by a daemon that maps no users: the tool has the account's numeric ids."""

    name = "docker"
    programs = ("docker",)
    confines = True
    formats = frozenset({DOCKER_ARCHIVE})
    gpus = frozenset({"nvidia", "amd"})

    def image_name(self, wanted: Wanted | None) -> str:
        """Return Docker's name of an image."""
        return docker_name(self.name, wanted)

    def start(self, task: Task) -> str:
        """Return the line; mounts are CSV, so that paths may contain any character."""
        argv = [
            "docker",
            "run",
            "--rm",
            *alone_or_together(task),
            "--pull=never",
            "--cap-drop=all",
            "--security-opt=no-new-privileges",
            "--log-driver=none",
            "--attach=stdout",
            "--attach=stderr",
            f"--workdir={task.sees_work}",
            mount_option(task.work, task.sees_work, _PRIVATE),
        ]
        if task.argv is None:
            argv.append(mount_option(task.command, task.command, _PRIVATE, "readonly"))
            argv.append(f"--entrypoint={task.shell}")
        argv += [mount_option(bind.source, bind.target, _PRIVATE, "readonly") for bind in task.binds]
        if task.memory and task.tasks == 1:
            argv.append(f"--shm-size={task.memory}")
        argv += _GPUS[task.gpus]
        environment = {"HOME": task.sees_work, **task.environment}
        argv += [f"--env={name}={value}" for name, value in environment.items()]
        after = [f"sha256:{task.image}", *((task.command,) if task.argv is None else task.argv)]
        known = handed_on(task, 'set -- "$@" "--env=$name=$value"')
        return f'set --\n{known}exec {quoted(argv)} --user="$(id -u):$(id -g)" "$@" {quoted(after)}'

    def image_argv(self, name: str) -> tuple[str, ...]:
        """Return `inspect`, which queries local images and pulls nothing."""
        return ("docker", "image", "inspect", name)

    def read_image(self, finished: CommandResult, name: str) -> Image | None:
        """Parse the output of `inspect`."""
        del name
        return read_inspected(self.name, finished)

    def convert_argv(self, archive: str, result: str, kind: str, image: str) -> tuple[tuple[str, ...], ...]:
        """Load an archive from `docker save`."""
        del result, kind, image
        return (("docker", "load", "--quiet", f"--input={archive}"),)


CONTAINER = Docker()
