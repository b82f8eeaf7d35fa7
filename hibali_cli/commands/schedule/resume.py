"""`hibali schedule resume`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.scheduling import tell_change


@as_command("resume", examples=[("hibali schedule resume nightly", "Let nightly run again.")])
@click.argument("name")
def command(common: Common, name: str) -> int | None:
    """Fire a paused schedule again; what was due meanwhile is not made up.

    This also accepts the folders that it finds as the targets of its transfers, where they are others than before.
    """
    from runs.schedules.install import put_and_install
    from runs.schedules.records import schedule_folder
    from runs.schedules.schedule import load_schedules
    from transfers.overlap import forget_roots

    schedule = load_schedules(common.config).one(name)
    schedule = replace(schedule, paused=False, since=datetime.now(UTC).replace(microsecond=0))
    known = put_and_install(common.config, schedule)
    forget_roots(schedule_folder(name))
    tell_change(common, known, schedule, "resumed")
    return None
