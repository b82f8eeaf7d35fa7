"""Where what lies in a run's folder is seen by its tool, in a container or without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runs.container import Bind, Container

if TYPE_CHECKING:
    from runs.prepare import Input


class Inside:
    """Where what a run has in its folder lies, and where a tool in a container sees it."""

    def __init__(self, folder: str, container: Container) -> None:
        self._inputs = f"{folder}/inputs"
        self._container = container
        self._place = container.place
        self.work = f"{self._place}/0" if self._place else f"{folder}/work"
        # one folder holds all that a runtime with a place of its own is given beside the work folder
        self.command = f"{self._inputs}/command" if self._place else f"{folder}/command"
        self.sees_command = f"{self._place}/1/command" if self._place else self.command
        self.proxy = f"{folder}/proxy"
        self.sees_proxy = f"{self._place}/1/proxy" if self._place else self.proxy

    def input(self, each: Input) -> str:
        """Where the tool sees it."""
        if self._place:
            return f"{self._place}/1/{each.number}/{each.name}"
        copied = self._container.isolates and not self._container.binds_inputs
        return each.source if each.in_place and not copied else self._inside(each)

    def _inside(self, each: Input) -> str:
        return f"{self._inputs}/{each.number}/{each.name}"

    def binds(self, inputs: Sequence[Input]) -> tuple[Bind, ...]:
        """What the runtime is to show of them."""
        if not self._container.isolates:
            return ()
        if not self._container.binds_inputs:
            return (Bind(self._inputs, f"{self._place}/1"),) if self._place else ()
        return tuple(Bind(each.source, self.input(each)) for each in inputs)

    def copies(self, inputs: Sequence[Input]) -> tuple[Bind, ...]:
        """What is to be copied into the run's folder; without a container the user's own files stay where they are."""
        if self._container.isolates:
            return tuple(Bind(each.source, self._inside(each)) for each in inputs)
        return tuple(Bind(each.source, self._inside(each)) for each in inputs if not each.in_place)
