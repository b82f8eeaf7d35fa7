"""Collect the steps of `hibali doctor`: name, result, finding and fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from hibali.errors import HibaliError
from runs.site_health import most_important


class StepStatus(StrEnum):
    """The result of a step."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"
    NOT_TRIED = "not-tried"


@dataclass(frozen=True, slots=True)
class Step:
    """A step with its finding and, if needed, a fix; `problem` is set for a fault.

    `scheduler` is the one that the site should have, where the fix is to set it.
    """

    name: str
    status: StepStatus
    found: str
    fix: str = ""
    problem: HibaliError | None = None
    scheduler: str = ""


@dataclass(slots=True)
class StepList:
    """The steps so far; `on_event` receives each one when it ends."""

    on_event: Callable[[Step], None]
    steps: list[Step] = field(default_factory=list)

    def ok(self, name: str, found: str, fix: str = "") -> None:
        """Add a step that succeeded; `fix` is what could be set as well."""
        self._add(Step(name, StepStatus.OK, found, fix))

    def warn(self, name: str, found: str, fix: str, *, scheduler: str = "") -> None:
        """Add a step that works, with a warning."""
        self._add(Step(name, StepStatus.WARNING, found, fix, scheduler=scheduler))

    def fault(self, name: str, problem: HibaliError) -> None:
        """Add a step that failed."""
        subject = f"{problem.subject}: " if problem.subject else ""
        self._add(Step(name, StepStatus.FAULT, f"{subject}{problem.message}", problem.hint, problem))

    def skip(self, names: Sequence[str], because: str) -> None:
        """Add steps that were not tried."""
        for name in names:
            self._add(Step(name, StepStatus.NOT_TRIED, because))

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self.on_event(step)

    def has_fault(self, name: str) -> bool:
        """Return whether a step of this name failed."""
        return any(step.name == name and step.status is StepStatus.FAULT for step in self.steps)

    def worst(self) -> HibaliError | None:
        """Return the main problem, or None: access first, because waiting does not solve it."""
        return most_important(self.problems())

    def problems(self) -> list[HibaliError]:
        """Return the problems of the steps that failed, in their order."""
        return [step.problem for step in self.steps if step.problem is not None]
