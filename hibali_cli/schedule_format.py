"""Format schedules and the results of their runs, for users and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from runs.schedules.environment import local_zone
from runs.schedules.records import Trigger, holder_of
from runs.schedules.schedule import Schedule


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
    zone = local_zone()
    return f"{schedule.cron.after(datetime.now(UTC), zone).astimezone(zone):%Y-%m-%d %H:%M}"


def format_outcome(trigger: Trigger | None) -> str:
    """Describe the result of a trigger in a few words."""
    if trigger is None:
        return "never run"
    if trigger.state == "skipped":
        return f"skipped: {trigger.because}"
    if trigger.exit is None:
        return {"running": "running", "broken": "broken off"}.get(trigger.state, trigger.state)
    return "done" if trigger.exit == 0 else f"exit {trigger.exit}"
