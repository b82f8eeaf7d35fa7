"""`hibali schedule remove`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.scheduling import tell_change


@as_command(
    "remove",
    examples=[("hibali schedule remove nightly", "Forget nightly; what it moved and its record stay.")],
)
@click.argument("name")
def command(common: Common, name: str) -> int | None:
    """Remove a schedule, and its line from where it was installed.

    Its log and the record of its runs stay; a run that is going goes on.
    """
    from runs.schedules.install import drop_and_install
    from runs.schedules.records import schedule_folder
    from runs.schedules.schedule import load_schedules
    from transfers.overlap import forget_roots

    schedule = load_schedules(common.config).one(name)
    known = drop_and_install(common.config, name)
    forget_roots(schedule_folder(name))
    tell_change(common, known, schedule, "removed")
    return None
