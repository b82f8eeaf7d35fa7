"""Gather what runs now: transfers, unfinished runs, and schedules with their next firing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from runs.schedules.environment import local_zone
from runs.schedules.records import Trigger, read_triggers, records_version
from runs.schedules.schedule import Schedule, load_schedules
from runs.unfinished import UnfinishedRun, UnfinishedRuns
from transfers.history.running import RunningOperation, running_operations


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A schedule with all its recorded firings; `due` is the next time, None while it is paused."""

    schedule: Schedule
    triggers: Sequence[Trigger]
    due: datetime | None

    @property
    def last(self) -> Trigger | None:
        """The latest firing that has ended."""
        return next((each for each in reversed(self.triggers) if not _runs(each)), None)

    @property
    def runs(self) -> bool:
        """Whether it runs now."""
        return bool(self.triggers) and _runs(self.triggers[-1])


@dataclass(frozen=True, slots=True)
class Present:
    """What runs at `now`, in seconds since the epoch: operations, runs as last observed, and schedules by name."""

    now: float
    operations: Sequence[RunningOperation] = ()
    runs: Sequence[UnfinishedRun] = ()
    schedules: Sequence[ScheduleState] = ()

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs now; schedules may be due later."""
        return not (self.operations or self.runs or any(each.runs for each in self.schedules))


@dataclass(slots=True)
class PresentReader:
    """Reads the present again and again; `config` is the config.toml given. Contacts no site."""

    config: str | None
    runs: UnfinishedRuns = field(default_factory=UnfinishedRuns)
    _triggers: dict[str, tuple[tuple[int, int], list[Trigger]]] = field(default_factory=dict)

    def read(self) -> Present:
        """Return the present; raises the errors of reading schedules.toml."""
        moment, zone = datetime.now(UTC), local_zone()
        schedules = load_schedules(self.config).schedules
        return Present(
            time.time(),
            running_operations(),
            self.runs.read(),
            [
                ScheduleState(
                    each, self._triggers_of(name), None if each.paused else each.cron.after(moment, zone)
                )
                for name, each in sorted(schedules.items())
            ],
        )

    def _triggers_of(self, schedule: str) -> list[Trigger]:
        """Return the firings; records that did not change are not read again, unless one runs: its process may have died."""
        version = records_version(schedule)
        earlier = self._triggers.get(schedule)
        if earlier is not None and earlier[0] == version and not any(map(_runs, earlier[1][-1:])):
            return earlier[1]
        found = read_triggers(schedule)
        self._triggers[schedule] = version, found
        return found


def _runs(trigger: Trigger) -> bool:
    return trigger.state == "running"
