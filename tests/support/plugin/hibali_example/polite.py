"""Start tools without an image, with `nice`: the container `polite`."""

from __future__ import annotations

import shlex

from hibali.config.schema import setting, table, whole
from registry.pipeline import Container as Wanted
from runs.containers.base import Container, Task


@table
class PoliteSettings:
    """The keys of [container] that only polite has."""

    niceness: int = setting(whole(most=19), default=10, doc="how nice tools are to others")


class Polite(Container):
    """Text and values in, text and values out."""

    name = "polite"
    settings = PoliteSettings
    programs = ("nice",)
    isolates = False
    binds_inputs = False

    def image_name(self, wanted: Wanted | None) -> str:
        """See Container: there are no images."""
        del wanted
        return ""

    def start(self, task: Task) -> str:
        """See Container."""
        variables = [f"{name}={value}" for name, value in task.environment.items()]
        words = ["nice", "-n", str(task.own.niceness), "env", *variables, task.shell, task.command]
        return "exec " + " ".join(shlex.quote(word) for word in words)


CONTAINER = Polite()
