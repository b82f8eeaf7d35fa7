"""`hibali schedule check`."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.scheduling import tell_obstacles


@as_command(
    "check",
    examples=[("hibali schedule check nightly", "See now whether nightly will work at three o'clock.")],
)
@click.argument("name")
def command(common: Common, name: str) -> int | None:
    """Look whether a schedule can work unattended: keys, certificates, host keys, secrets, and a login as bare as that of cron."""
    from runs.unattended.looking import find_obstacles
    from runs.unattended.schedules_file import load_schedules

    schedule = load_schedules(common.config).one(name)
    tell_obstacles(
        common, name, find_obstacles(common.config, common.settings(), schedule, datetime.now(UTC))
    )
    common.output.say(f"Nothing is in the way of {name}.")
    return None
