"""Lost lines: which errors mean one, and for how long a call tries to come back."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hibali.errors import TryLaterError

_LOST = frozenset({"connection-lost", "unreachable"})


def is_lost(problem: BaseException) -> bool:
    """Whether this says that a line was lost, and nothing about who was at its other end."""
    return isinstance(problem, TryLaterError) and problem.transient and problem.code in _LOST


@runtime_checkable
class Survivor(Protocol):
    """A store that goes on after a lost line."""

    @property
    def reconnects(self) -> int:
        """How many lost lines it went on after."""
