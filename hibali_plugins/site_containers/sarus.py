"""Start tools in Sarus 1.6 (its user guide)."""

from __future__ import annotations

import re

from runs.containers.base import (
    DOCKER_ARCHIVE,
    Container,
    Image,
    Task,
    forwarded_variables,
    quoted,
    require_program,
    unsafe_path,
)
from transfers.remote.host import CommandResult

_IMPORTED = re.compile(r"load/library/hibali-([0-9a-f]{64})")
_SPLITS = {
    ",": "a comma",
    "=": "an equals sign",
    '"': "a quotation mark",
    "\\": "a backslash",
    "\n": "a newline",
}


class Sarus(Container):
    """Docker images in Sarus's repository, with the host's network, the own user and no capabilities."""

    name = "sarus"
    programs = ("sarus",)
    confines = False  # the site's own mounts are in every container, and writable
    formats = frozenset({DOCKER_ARCHIVE})
    gpus = frozenset({"nvidia", "amd"})

    def start(self, task: Task) -> str:
        """Return the line, with an empty environment but for PATH and HOME: Sarus passes all of it to the tool.

        Its hooks mount the GPUs that variables name (its user guide, "NVIDIA GPU support", "AMD GPU support").
        """
        argv = ["sarus", "run", "--pid=private", f"--workdir={task.sees_work}"]
        argv.append(_mount(task.work, task.sees_work))
        if task.argv is None:
            argv += [_mount(task.command, task.command, "readonly"), f"--entrypoint={task.shell}"]
        argv += [_mount(bind.source, bind.target, "readonly") for bind in task.binds]
        environment = {"HOME": task.sees_work, **task.environment}
        argv += [f"--env={name}={value}" for name, value in environment.items()]
        argv += [f"load/library/hibali-{task.image}:latest"]
        argv += [task.command] if task.argv is None else task.argv
        known = forwarded_variables(task, 'set -- "$@" "$name=$value"')
        return f'set --\n{known}exec env -i PATH="$PATH" HOME="$HOME" "$@" {quoted(argv)}'

    def image_argv(self, name: str) -> tuple[str, ...]:
        """List all images."""
        del name
        return ("sarus", "images")

    def read_image(self, finished: CommandResult, name: str) -> Image | None:
        """Return only images that were loaded under their id: other names do not identify the content."""
        require_program(self.name, finished)
        for line in finished.stdout.decode("utf-8", "replace").splitlines():
            imported = _IMPORTED.match(line)
            if imported and imported[1] == name.removeprefix("sha256:"):
                return Image(imported[1])
        return None

    def convert_argv(self, archive: str, result: str, kind: str, image: str) -> tuple[tuple[str, ...], ...]:
        """Load an archive from `docker save` under the image's id; temporary files are in our folder."""
        del kind
        folder = result.rpartition("/")[0]
        return (("sarus", "load", f"--temp-dir={folder}", archive, f"hibali-{image}"),)


def _mount(source: str, target: str, *more: str) -> str:
    """Format a mount; Sarus splits at commas and supports no quotes."""
    for path in (source, target):
        for letter, reason in _SPLITS.items():
            if letter in path:
                raise unsafe_path(path, reason)
    return "--mount=" + ",".join(["type=bind", f"source={source}", f"destination={target}", *more])


CONTAINER = Sarus()
