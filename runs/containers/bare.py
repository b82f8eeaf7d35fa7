"""Start tools without a container, as installed at the site."""

from __future__ import annotations

import shlex

from registry.pipeline import Container as Wanted
from runs.containers.base import Container, Task


class Bare(Container):
    """The site's choice to use no container; the descriptor's image is ignored."""

    name = "bare"
    isolates = False
    binds_inputs = False
    gpus = frozenset({"nvidia", "amd"})

    def image_name(self, wanted: Wanted | None) -> str:
        """Return "": no image is used."""
        del wanted
        return ""

    def start(self, task: Task) -> str:
        """Return the line, with `env` for variables: a descriptor's values are never shell text."""
        variables = [f"{name}={value}" for name, value in task.environment.items()]
        argv = [*(["env", *variables] if variables else []), task.shell, task.command]
        return "exec " + " ".join(shlex.quote(argument) for argument in argv)


CONTAINER = Bare()
