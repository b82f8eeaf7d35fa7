"""Start tools without a container, as installed at the site."""

from __future__ import annotations

import shlex

from registry.pipeline import Container as Wanted
from runs.containers.base import Container, Task


class Bare(Container):
    """The site decided so; the descriptor's image is not used."""

    name = "bare"
    isolates = False
    binds_inputs = False
    gpus = frozenset({"nvidia", "amd"})

    def image_name(self, wanted: Wanted | None) -> str:
        """Never one."""
        del wanted
        return ""

    def start(self, task: Task) -> str:
        """`env` sets the variables: what a descriptor names is never shell text."""
        variables = [f"{name}={value}" for name, value in task.environment.items()]
        words = [*(["env", *variables] if variables else []), task.shell, task.command]
        return "exec " + " ".join(shlex.quote(word) for word in words)


CONTAINER = Bare()
