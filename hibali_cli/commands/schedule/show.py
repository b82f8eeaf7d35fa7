"""`hibali schedule show`."""

from __future__ import annotations

import shlex
from dataclasses import replace

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.scheduling import due_words, outcome_words, schedule_fields, warn_of_missing


@as_command(
    "show",
    examples=[("hibali schedule show nightly", "See all that is set for nightly, and how it last went.")],
)
@click.argument("name")
def command(common: Common, name: str) -> int | None:
    """Show one schedule, when it is due, and its last run."""
    from runs.schedules.install import installed_names
    from runs.schedules.records import log_path, read_firings
    from runs.schedules.schedule import load_schedules

    known = load_schedules(common.config)
    schedule = known.one(name)
    firings = read_firings(name)
    installed = installed_names(common.config, known)
    if common.json:
        common.output.record("schedule", schedule_fields(schedule, firings, installed=name in installed))
        return None
    warn_of_missing(common, replace(known, schedules={name: schedule}), installed)
    last = firings[-1] if firings else None
    values: dict[str, str | int | None] = {
        "name": schedule.name,
        "command": shlex.join(["hibali", *schedule.command]),
        "next": due_words(schedule),
        "last": outcome_words(last),
        "log": str(log_path(name)),
        "file": str(known.path),
    }
    shown = {key: value for key, value in schedule.to_table().items() if key not in {"command", "paused"}}
    for key, value in shown.items():
        values[key] = (
            " ".join(f"{a}={b}" for a, b in value.items()) if isinstance(value, dict) else str(value)
        )
    if last is not None and last.message:
        values["said"] = last.message
        values["then"] = last.hint
    common.output.pairs(values)
    return None
