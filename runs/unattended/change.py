"""Changing a schedule and what fires it together: where the one cannot be done the other is not."""

from __future__ import annotations

from hibali.errors import HibaliError
from runs.unattended.installing import install
from runs.unattended.schedule import Schedule, Schedules
from runs.unattended.schedules_file import drop_schedule, load_schedules, put_schedule


def put_and_install(config: str | None, schedule: Schedule) -> Schedules:
    """The schedule as it is to be, in schedules.toml and where it is fired; returns all there are now. Raises what `install` does."""
    before = load_schedules(config).schedules.get(schedule.name)
    put_schedule(config, schedule)
    return _install_or_undo(config, schedule.name, before)


def drop_and_install(config: str | None, name: str) -> Schedules:
    """Without the schedule; returns those that are left. Raises `NotFoundError`, and what `install` does."""
    before = load_schedules(config).one(name)
    drop_schedule(config, name)
    return _install_or_undo(config, name, before)


def _install_or_undo(config: str | None, name: str, before: Schedule | None) -> Schedules:
    known = load_schedules(config)
    try:
        install(config, known)
    except HibaliError:
        if before is not None:
            put_schedule(config, before)
        else:
            drop_schedule(config, name)
        raise
    return known
