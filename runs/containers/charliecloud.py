"""Start tools in Charliecloud 0.31 and later (ch-run(1))."""

from __future__ import annotations

from runs.containers.base import (
    DOCKER_ARCHIVE,
    OCI_ARCHIVE,
    PATH,
    Container,
    Task,
    forwarded_variables,
    quoted,
    unsafe_path,
)

# ch-run creates its mount point, and fails if another task of the job creates it at the same time
_PREPARE = """USER=${USER:-$(id -un)}
export USER
mkdir -m 700 "/var/tmp/$USER.ch" "/var/tmp/$USER.ch/mnt" 2>/dev/null
"""


class Charliecloud(Container):
    """Flattened Docker images. Binds are writable, so the run gets its own copies of inputs."""

    name = "charliecloud"
    programs = ("ch-run", "ch-convert")
    confines = True
    binds_inputs = False
    place = "/mnt"  # ch-convert(1) makes /mnt/0 to /mnt/9 in every image
    form = "image.sqfs"
    formats = frozenset({DOCKER_ARCHIVE, OCI_ARCHIVE})
    flattens = True
    # the host's devices are visible; ch-fromhost(1) can add NVIDIA's libraries only to writable images
    gpus = frozenset({"amd"})

    def start(self, task: Task) -> str:
        """Return the line. ch-run needs $USER, and removes one pair of single quotes from every value."""
        argv = ["ch-run", "--private-tmp", "--unset-env=*", "--env-no-expand"]
        argv.append(_bind(task.work, task.sees_work))
        argv += [_bind(bind.source, bind.target) for bind in task.binds]
        environment = {"PATH": PATH, **task.image_environment, "HOME": task.sees_work, **task.environment}
        argv += [f"--set-env={name}='{value}'" for name, value in environment.items()]
        argv.append(f"--cd={task.sees_work}")
        after = [task.image, "--"]
        after += [task.shell, task.sees_command] if task.argv is None else [*task.entrypoint, *task.argv]
        known = forwarded_variables(task, """set -- "$@" "--set-env=$name='$value'\"""")
        return f'{_PREPARE}set --\n{known}exec {quoted(argv)} "$@" {quoted(after)}'

    def convert_argv(self, archive: str, result: str, kind: str, image: str) -> tuple[tuple[str, ...], ...]:
        """Convert the flat tar with ch-convert(1), which detects formats by file names."""
        del kind, image
        folder = result.rpartition("/")[0]
        return (("ch-convert", "-i", "tar", "-o", "squash", "--tmp", folder, archive, result),)


def _bind(source: str, target: str) -> str:
    """Format `--bind=SRC:DST`, which cannot contain a colon in a path."""
    for path in (source, target):
        if ":" in path:
            raise unsafe_path(path, "a colon")
    return f"--bind={source}:{target}"


CONTAINER = Charliecloud()
