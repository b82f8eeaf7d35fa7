"""Show schedules and the results of their runs: in `hibali status`, for users and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from hibali.amounts import format_duration
from hibali_plugins.schedules.environment import local_zone
from hibali_plugins.schedules.install import installed_names
from hibali_plugins.schedules.records import Trigger, holder_of, read_triggers, records_version
from hibali_plugins.schedules.schedule import Schedule, load_schedules
from runs.present import StatusItem


def schedule_fields(schedule: Schedule, triggers: Sequence[Trigger], *, installed: bool) -> dict[str, Any]:
    """Return the fields of a JSON line of kind `schedule`."""
    due = None if schedule.paused else schedule.cron.after(datetime.now(UTC), local_zone())
    return {
        **schedule.to_record(),
        "next": None if due is None else f"{due:%Y-%m-%dT%H:%M:%SZ}",
        "installed": installed,
        "held_by": holder_of(schedule.name),
        "last": None if not triggers else triggers[-1].to_record(),
    }


def format_next_run(schedule: Schedule) -> str:
    """Format when it is due next, in local time."""
    if schedule.paused:
        return "paused"
    return f"{next_run(schedule):%Y-%m-%d %H:%M}"


def next_run(schedule: Schedule) -> datetime:
    """Return when it is due next, unless it is paused, in local time."""
    zone = local_zone()
    return schedule.cron.after(datetime.now(UTC), zone).astimezone(zone)


def format_outcome(trigger: Trigger | None) -> str:
    """Describe the result of a trigger in a few words."""
    if trigger is None:
        return "never run"
    if trigger.state == "skipped":
        return f"skipped: {trigger.because}"
    if trigger.exit is None:
        return {"running": "running", "broken": "broken off"}.get(trigger.state, trigger.state)
    return "done" if trigger.exit == 0 else f"exit {trigger.exit}"


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


def _runs(trigger: Trigger) -> bool:
    return trigger.state == "running"


def facts_of(each: ScheduleState, now: float, due_text: str | None = None) -> list[str]:
    """Return what is shown of a schedule; `due_text` is its next time, by default in local time."""
    facts = []
    if each.runs:
        began = datetime.fromisoformat(each.triggers[-1].began).timestamp()
        facts.append(f"for {format_duration(max(0.0, now - began))}")
    if each.due is not None:
        left = format_duration(max(0.0, each.due.timestamp() - now))
        facts.append(f"next {due_text or format_next_run(each.schedule)} (in {left})")
    facts.append(f"last: {format_outcome(each.last)}" if each.last is not None else "never run")
    return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleItem(StatusItem):
    """A schedule in `hibali status`."""

    of: ScheduleState


@dataclass(slots=True)
class ScheduleReader:
    """Reads the schedules of a config.toml for `hibali status`, and again only what changed."""

    config: str | None
    _triggers: dict[str, tuple[tuple[int, int], list[Trigger]]] = field(default_factory=dict)

    def read(self, now: float) -> Sequence[ScheduleItem]:
        """Return the schedules by name; raises the errors of reading schedules.toml."""
        moment, zone = datetime.now(UTC), local_zone()
        schedules = load_schedules(self.config)

        @cache
        def installed() -> set[str]:  # it asks cron and systemd, which only JSON waits for
            return installed_names(self.config, schedules)

        return [
            _item(
                ScheduleState(
                    each, self._triggers_of(name), None if each.paused else each.cron.after(moment, zone)
                ),
                now,
                installed,
            )
            for name, each in sorted(schedules.schedules.items())
        ]

    def _triggers_of(self, schedule: str) -> list[Trigger]:
        """Return the firings; records that did not change are not read again, unless one runs: its process may have died."""
        version = records_version(schedule)
        earlier = self._triggers.get(schedule)
        if earlier is not None and earlier[0] == version and not any(map(_runs, earlier[1][-1:])):
            return earlier[1]
        found = read_triggers(schedule)
        self._triggers[schedule] = version, found
        return found


def _item(each: ScheduleState, now: float, installed: Callable[[], set[str]]) -> ScheduleItem:
    name = each.schedule.name
    state = "running" if each.runs else "paused" if each.due is None else "waiting"
    record = partial(_record, each, installed)
    return ScheduleItem("schedule", name, state, facts_of(each, now), record, each.runs, of=each)


def _record(each: ScheduleState, installed: Callable[[], set[str]]) -> dict[str, Any]:
    return schedule_fields(each.schedule, each.triggers, installed=each.schedule.name in installed())
