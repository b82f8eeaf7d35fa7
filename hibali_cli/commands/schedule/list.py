"""`hibali schedule list`."""

from __future__ import annotations

from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.scheduling import due_words, outcome_words, schedule_fields, warn_of_missing


@as_command(
    "list", examples=[("hibali schedule list", "See every schedule, when it is due and how it went.")]
)
def command(common: Common) -> int | None:
    """List the schedules of this configuration."""
    from runs.schedules.install import installed_names
    from runs.schedules.records import read_firings
    from runs.schedules.schedule import load_schedules

    known = load_schedules(common.config)
    found = [(known.schedules[name], read_firings(name)) for name in sorted(known.schedules)]
    installed = installed_names(common.config, known)
    if common.json:
        for schedule, firings in found:
            common.output.record(
                "schedule", schedule_fields(schedule, firings, installed=schedule.name in installed)
            )
        common.output.record("end", {"count": len(found), "exit": 0})
        return None
    rows = [
        (
            schedule.name,
            schedule.cron.text,
            due_words(schedule),
            outcome_words(firings[-1] if firings else None),
            " ".join(schedule.command),
        )
        for schedule, firings in found
    ]
    warn_of_missing(common, known, installed)
    common.output.table(["name", "cron", "next", "last", "command"], rows)
    if not found:
        common.output.say('No schedules yet: hibali schedule add NAME --cron "0 3 * * *" -- push ...')
    return None
