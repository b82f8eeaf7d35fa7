"""`hibali schedule run`."""

from __future__ import annotations

import click

from hibali.errors import UsageError
from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.scheduling import outcome_words


@as_command("run", examples=[("hibali schedule run nightly", "Run nightly now, just as it runs at night.")])
@click.argument("name", required=False)
@click.option("--due", is_flag=True, help="Only if it is due; without NAME, all that were missed. For cron.")
def command(common: Common, name: str | None, *, due: bool) -> int | None:
    """Run a schedule's command now, with nothing but what cron gives; ends with its exit code."""
    from runs.schedules.records import forget_start
    from runs.schedules.schedule import load_schedules
    from runs.schedules.tend import make_up_all, tend
    from runs.schedules.trigger import fire_due, fire_now

    known = load_schedules(common.config)
    if name is None:
        if not due:
            raise UsageError(
                "usage", "name a schedule: hibali schedule run NAME", about="hibali schedule run"
            )
        forget_start(None)
        make_up_all(common.config, known, common.output.warn)
        return None
    schedule = known.one(name)
    if due:
        forget_start(name)
    firing = fire_due(common.config, schedule) if due else fire_now(common.config, schedule)
    if firing is None:
        return None
    tend(common.config, known, common.output.warn)
    if common.json:
        common.output.record("firing", firing.to_record())
    elif not due:
        moved = f"; {firing.amount('files_moved')} files moved" if firing.amounts else ""
        common.output.say(f"{name}: {outcome_words(firing)}{moved}; {firing.id}")
        if firing.exit and firing.message:
            common.output.warn(f"  {firing.message}")
            common.output.warn(f"  {firing.hint or f'hibali schedule log {name} --text'}")
    return firing.exit or 0
