"""`hibali schedule check`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.scheduling import find_problems, tell_problems


@as_command(
    "check",
    examples=[("hibali schedule check nightly", "See now whether nightly will work at three o'clock.")],
)
@click.argument("name")
def command(common: Common, name: str) -> int | None:
    """Check whether a schedule can work unattended: its command, keys, certificates, host keys, secrets, and what it reads and writes.

    The login is as bare as that of cron.
    """
    from runs.schedules.schedule import load_schedules

    schedule = load_schedules(common.config).one(name)
    tell_problems(common, name, find_problems(common, schedule))
    common.output.say(f"{name}: all checks passed.")
    return None
