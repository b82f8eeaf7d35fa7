"""`hibali schedule pause`."""

from __future__ import annotations

from dataclasses import replace

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.scheduling import tell_change


@as_command("pause", examples=[("hibali schedule pause nightly", "Leave nightly out until further notice.")])
@click.argument("name")
def command(common: Common, name: str) -> int | None:
    """Stop firing a schedule until it is resumed; a run that is going goes on."""
    from runs.schedules.install import put_and_install
    from runs.schedules.schedule import load_schedules

    schedule = load_schedules(common.config).one(name)
    schedule = replace(schedule, paused=True)
    known = put_and_install(common.config, schedule)
    tell_change(common, known, schedule, "paused")
    return None
