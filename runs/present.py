"""Gather what runs now: transfers, unfinished runs, and what plugins add, such as schedules."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hibali.plugins import every
from runs.unfinished import UnfinishedRun, UnfinishedRuns
from transfers.history.running import RunningOperation, running_operations


@dataclass(frozen=True, slots=True)
class StatusItem:
    """One line: `facts` are shown as far as they fit, the most important first. Nothing in it is escaped yet.

    `record` returns the fields of its JSON line, which has the kind `kind`; `busy` is False if it only waits.
    """

    kind: str
    name: str
    state: str
    facts: Sequence[str]
    record: Callable[[], Mapping[str, Any]]
    busy: bool = True


class StatusPart(Protocol):
    """Reads the items of a plugin again and again; the value of `hibali.status` makes one for a config.toml."""

    def read(self, now: float) -> Sequence[StatusItem]:
        """Return the items, sorted; `now` is in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Present:
    """What runs at `now`, in seconds since the epoch: operations, runs as last observed, and the items of plugins."""

    now: float
    operations: Sequence[RunningOperation] = ()
    runs: Sequence[UnfinishedRun] = ()
    others: Sequence[StatusItem] = ()

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs now; schedules may be due later."""
        return not (self.operations or self.runs or any(each.busy for each in self.others))


class PresentReader:
    """Reads the present again and again; `config` is the config.toml given. Contacts no site."""

    def __init__(self, config: str | None) -> None:
        self.runs = UnfinishedRuns()
        self._parts: list[StatusPart] = [make(config) for _, make in every("hibali.status")]

    def read(self) -> Present:
        """Return the present; raises the errors of reading what plugins show, such as schedules.toml."""
        now = time.time()
        others = [item for part in self._parts for item in part.read(now)]
        return Present(now, running_operations(), self.runs.read(), others)
