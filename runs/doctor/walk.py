"""The steps of a walk through a site, each with its verdict; what depends on a step that failed is not tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from hibali.errors import AccessError, HibaliError, TryLaterError


class Verdict(StrEnum):
    """How a step ended."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"
    NOT_TRIED = "not-tried"


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what was found, and what to do where that is not as it should be; `problem` is there for a fault."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""
    problem: HibaliError | None = None


@dataclass(slots=True)
class Walk:
    """The steps so far; `tell` hears of each as soon as it is over."""

    tell: Callable[[Step], None]
    steps: list[Step] = field(default_factory=list)

    def ok(self, name: str, found: str) -> None:
        """It is as it should be."""
        self._add(Step(name, Verdict.OK, found))

    def warn(self, name: str, found: str, fix: str) -> None:
        """It works, and somebody should know."""
        self._add(Step(name, Verdict.WARNING, found, fix))

    def fault(self, name: str, problem: HibaliError) -> None:
        """It does not work."""
        about = f"{problem.about}: " if problem.about else ""
        self._add(Step(name, Verdict.FAULT, f"{about}{problem.message}", problem.hint, problem))

    def skip(self, names: Sequence[str], because: str) -> None:
        """They were not tried."""
        for name in names:
            self._add(Step(name, Verdict.NOT_TRIED, because))

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self.tell(step)

    def has_fault(self, name: str) -> bool:
        """Whether a step of this name failed."""
        return any(step.name == name and step.verdict is Verdict.FAULT for step in self.steps)

    def worst(self) -> HibaliError | None:
        """The problem that stands for all: access first, because waiting does not heal it; then what may pass; None without a fault."""
        problems = [step.problem for step in self.steps if step.problem is not None]
        return min(problems, key=_order, default=None)


def _order(problem: HibaliError) -> int:
    if isinstance(problem, AccessError):
        return 0
    return 1 if isinstance(problem, TryLaterError) else 2
