"""Start tools in Charliecloud 0.31 and later (ch-run(1))."""

from __future__ import annotations

from registry.pipeline import Container as Wanted
from runs.containers.base import (
    DOCKER_ARCHIVE,
    OCI_ARCHIVE,
    PATH,
    Container,
    Task,
    docker_name,
    handed_on,
    quoted,
    unsafe_path,
)

_USER = "USER=${USER:-$(id -un)}\nexport USER\n"


class Charliecloud(Container):
    """Flattened Docker images. What is bound can be written, so that inputs are copies of this run's own."""

    name = "charliecloud"
    programs = ("ch-run", "ch-convert")
    confines = True
    binds_inputs = False
    place = "/mnt"  # ch-convert(1) makes /mnt/0 to /mnt/9 in every image
    form = "image.sqfs"
    formats = frozenset({DOCKER_ARCHIVE, OCI_ARCHIVE})
    flattens = True
    gpus = frozenset(
        {"amd"}
    )  # it shows the host's devices; ch-fromhost(1) puts NVIDIA's libraries into images that can be written

    def image_name(self, wanted: Wanted | None) -> str:
        """As Docker names images."""
        return docker_name(self.name, wanted)

    def start(self, task: Task) -> str:
        """One long line. ch-run wants $USER, and takes one pair of single quotes off every value."""
        words = ["ch-run", "--private-tmp", "--unset-env=*", "--env-no-expand"]
        words.append(_bind(task.work, task.sees_work))
        words += [_bind(bind.source, bind.target) for bind in task.binds]
        environment = {"PATH": PATH, **task.image_environment, "HOME": task.sees_work, **task.environment}
        words += [f"--set-env={name}='{value}'" for name, value in environment.items()]
        words.append(f"--cd={task.sees_work}")
        after = [task.image, "--"]
        after += [task.shell, task.sees_command] if task.words is None else [*task.entrypoint, *task.words]
        known = handed_on(task, """set -- "$@" "--set-env=$name='$value'\"""")
        return f'{_USER}set --\n{known}exec {quoted(words)} "$@" {quoted(after)}'

    def convert_argv(self, archive: str, result: str, kind: str, image: str) -> tuple[tuple[str, ...], ...]:
        """From the flat tar by ch-convert(1), which wants the names it knows formats by."""
        del kind, image
        folder = result.rpartition("/")[0]
        return (("ch-convert", "-i", "tar", "-o", "squash", "--tmp", folder, archive, result),)


def _bind(source: str, target: str) -> str:
    """`--bind=SRC:DST` has no way to write a colon."""
    for path in (source, target):
        if ":" in path:
            raise unsafe_path(path, "a colon")
    return f"--bind={source}:{target}"


CONTAINER = Charliecloud()
