"""Start tools in Docker 20.10 and later (docker-run(1))."""

from __future__ import annotations

from typing import ClassVar

from runs.containers.base import (
    DOCKER_ARCHIVE,
    Container,
    Image,
    Task,
    alone_or_together,
    forwarded_variables,
    mount_option,
    quoted,
    read_inspected,
)
from transfers.remote.host import CommandResult

_PRIVATE = "bind-propagation=rprivate"


class Docker(Container):
    """Docker images, started by a daemon that maps no users: the tool has the account's numeric ids.

    Attributes:
        read_only: The property of a read-only mount.
        options: Further options of `run`.
        user_lines: Shell lines that put the options for the user into `$@`.
        gpu_options: The options by kind of GPUs: docker-run(1) for NVIDIA's toolkit; the devices are those of ROCm's
            guide for containers.
        id_prefix: The prefix of an image's id.
        inspect_options: Further options of `image inspect`.
    """

    name = "docker"
    programs: tuple[str, ...] = ("docker",)
    confines = True
    formats = frozenset({DOCKER_ARCHIVE})
    gpus = frozenset({"nvidia", "amd"})
    read_only: ClassVar[str] = "readonly"
    options: ClassVar[tuple[str, ...]] = ("--attach=stdout", "--attach=stderr")
    user_lines: ClassVar[str] = 'set -- --user="$(id -u):$(id -g)"\n'
    gpu_options: ClassVar[dict[str, tuple[str, ...]]] = {
        "": (),
        "nvidia": ("--gpus=all",),
        "amd": ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=video"),
    }
    id_prefix: ClassVar[str] = "sha256:"
    inspect_options: ClassVar[tuple[str, ...]] = ()

    def start(self, task: Task) -> str:
        """Return the line; mounts are CSV, so that paths may contain any character."""
        argv = [
            *self.run_argv(task),
            "--rm",
            *alone_or_together(task),
            "--pull=never",
            "--cap-drop=all",
            "--security-opt=no-new-privileges",
            "--log-driver=none",
            *self.options,
            f"--workdir={task.sees_work}",
            mount_option(task.work, task.sees_work, _PRIVATE),
        ]
        if task.argv is None:
            argv.append(mount_option(task.command, task.command, _PRIVATE, self.read_only))
            argv.append(f"--entrypoint={task.shell}")
        argv += [mount_option(bind.source, bind.target, _PRIVATE, self.read_only) for bind in task.binds]
        if task.memory and task.tasks == 1:
            argv.append(f"--shm-size={task.memory}")
        argv += self.gpu_options[task.gpus]
        environment = {"HOME": task.sees_work, **task.environment}
        argv += [f"--env={name}={value}" for name, value in environment.items()]
        after = [f"{self.id_prefix}{task.image}", *((task.command,) if task.argv is None else task.argv)]
        known = forwarded_variables(task, 'set -- "$@" "--env=$name=$value"')
        return f'{self.user_lines}{known}exec {quoted(argv)} "$@" {quoted(after)}'

    def run_argv(self, task: Task) -> list[str]:
        """Return the command that starts a container."""
        del task
        return [self.name, "run"]

    def image_argv(self, name: str) -> tuple[str, ...]:
        """Return `inspect`, which queries local images and pulls nothing."""
        return (self.name, "image", "inspect", *self.inspect_options, name)

    def read_image(self, finished: CommandResult, name: str) -> Image | None:
        """Parse the output of `inspect`."""
        del name
        return read_inspected(self.name, finished)

    def convert_argv(self, archive: str, result: str, kind: str, image: str) -> tuple[tuple[str, ...], ...]:
        """Load an archive."""
        del result, kind, image
        return ((self.name, "load", "--quiet", f"--input={archive}"),)


CONTAINER = Docker()
