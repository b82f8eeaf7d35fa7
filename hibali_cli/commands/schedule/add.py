"""`hibali schedule add`."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import click

from hibali.errors import RefusedError, UsageError
from hibali_cli.command import command as as_command
from hibali_cli.options import Common, duration_of
from hibali_cli.scheduling import UNFIT, check_words, find_problems, tell_change, tell_problems

if TYPE_CHECKING:
    from runs.schedules.schedule import Installer, Missed, Schedule

_EXAMPLES = [
    (
        'hibali schedule add nightly --cron "0 3 * * *" --jitter 20m --max-time 4h -- push /data bucket:data',
        "Push every night at three, up to 20 minutes later, for four hours at most.",
    ),
    (
        "hibali schedule add hourly-results --cron @hourly --missed once --retry-for 30m -- pull juwels:results results",
        "Make up for what was missed, and try again for half an hour where the site does not answer.",
    ),
]


@as_command("add", examples=_EXAMPLES)
@click.argument("name")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--cron", required=True, metavar="EXPRESSION", help='When, as in a crontab: "0 3 * * *".')
@click.option(
    "--jitter", callback=duration_of, metavar="DURATION", help="Wait up to so long before it begins."
)
@click.option(
    "--retry-for",
    callback=duration_of,
    metavar="DURATION",
    help="After exit 5 try again, with growing pauses, for so long.",
)
@click.option(
    "--missed",
    type=click.Choice(["skip", "once"]),
    default="skip",
    show_default=True,
    help="What becomes of a time at which the machine was off: nothing, or one run as soon as it is on.",
)
@click.option(
    "--silent-after",
    callback=duration_of,
    metavar="DURATION",
    help="Give notice when nothing has run for so long; without it, twice the usual time.",
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable that the command needs; never a secret; repeatable.",
)
@click.option(
    "--by",
    type=click.Choice(["cron", "systemd", "print"]),
    help="What fires it: your crontab, timers of your systemd, or you yourself, by the lines that are printed.",
)
@click.option(
    "--replace", "replacing", is_flag=True, help="Put it in the place of the schedule of that name."
)
@click.option("--no-check", is_flag=True, help="Check the command itself only; do not connect to its sites.")
def command(common: Common, name: str, words: tuple[str, ...], **options: object) -> int | None:
    """Run COMMAND, any of hibali's, at set times.

    The command is checked first: its options, the sites and pipelines it names, the direction. Then hibali connects with a login as bare as that
    of cron, and opens what the command reads and writes. What will not work is reported now, and nothing is changed then. --no-check
    does not connect, for a site that is down at the moment. --max-time is the longest that each run may take. Relative paths
    begin in the current folder.
    """
    from runs.schedules.install import choose_installer, install, put_and_install
    from runs.schedules.records import schedule_folder
    from runs.schedules.schedule import load_schedules
    from transfers.overlap import forget_roots

    by = options["by"]
    known = load_schedules(common.config)
    schedule = _schedule(common, name, words, options)
    before = known.schedules.get(name)
    if before is not None and not options["replacing"]:
        if replace(schedule, since=before.since, by=before.by if by is None else schedule.by) == before:
            install(common.config, known)
            tell_change(common, known, before, "same")
            return None
        raise RefusedError(
            "schedule-differs",
            f"another schedule of this name stands in {known.path}",
            about=name,
            hint=f"See `hibali schedule show {name}`; --replace puts the new one in its place.",
        )
    problems = find_problems(common, schedule, connect=not options["no_check"])
    if problems:
        tell_problems(common, name, problems, adding=True)
    if by is None:
        schedule = replace(schedule, by=choose_installer())
    known = put_and_install(common.config, schedule)
    forget_roots(schedule_folder(name))
    tell_change(common, known, schedule, "added" if before is None else "replaced")
    return None


def _schedule(common: Common, name: str, words: tuple[str, ...], options: dict[str, object]) -> Schedule:
    from runs.schedules.schedule import Schedule, check_name, check_variable, read_expression

    folder = os.getcwd()  # noqa: PTH109  # a folder as the user sees it
    if UNFIT.search(folder):
        raise UsageError("bad-folder", "this folder's name cannot be kept", about=ascii(folder))
    return Schedule(
        name=check_name(name),
        cron=read_expression(str(options["cron"])),
        command=check_words(words),
        folder=folder,
        since=datetime.now(UTC).replace(microsecond=0),
        by=cast("Installer", options["by"] or "cron"),
        jitter=_seconds(options["jitter"]),
        max_time=common.max_seconds or 0.0,
        retry_for=_seconds(options["retry_for"]),
        missed=cast("Missed", options["missed"]),
        silent_after=_seconds(options["silent_after"]),
        environment=dict(check_variable(text) for text in cast("tuple[str, ...]", options["env"])),
    )


def _seconds(value: object) -> float:
    return value if isinstance(value, float) else 0.0
