"""Schedules as people and programs are shown them, and the words that they run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from hibali.errors import HibaliError, UsageError
from hibali_cli.failure import tell_people
from hibali_cli.options import Common

if TYPE_CHECKING:
    from runs.unattended.firings import Firing
    from runs.unattended.schedule import Schedule, Schedules

UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and halves of what is not UTF-8


def check_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words behind `hibali` of a command that can be scheduled; raises `UsageError` for any other, as typing it would."""
    from hibali_cli.root import root

    given = list(words[1:] if words[:1] == ("hibali",) else words)
    if not given or given[0] == "schedule":
        raise UsageError(
            "bad-command",
            "what is to be run stands behind --, as in: -- push /data bucket:data",
            about="hibali schedule add",
        )
    for word in given:
        if UNFIT.search(word):
            raise UsageError(
                "bad-command",
                "a word with a newline, another control character or what is not UTF-8 cannot be kept",
                about=ascii(word),
                hint="Name the folder above it.",
            )
    _parse(root, given)
    return tuple(given)


def _parse(group: click.Group, words: list[str]) -> None:
    """Read the words as if they were to be run, and run nothing."""
    context = click.Context(group, info_name="hibali")
    command: click.Command | None = group
    rest = words
    while isinstance(command, click.Group):
        if not rest or rest[0].startswith("-"):
            raise UsageError(
                "bad-command", f"{' '.join(words)!r} is no command by itself", about="hibali schedule add"
            )
        name, command, rest = command.resolve_command(context, rest)
        if command is None or name is None:
            raise UsageError("bad-command", "there is no such command", about=" ".join(words))
        context = click.Context(command, info_name=name, parent=context)
    assert command is not None
    if {"-h", "--help"} & set(rest):
        raise UsageError("bad-command", "help is read by day", about="hibali schedule add")
    command.make_context(context.info_name, list(rest), parent=context.parent)


def schedule_fields(schedule: Schedule, firings: Sequence[Firing], *, installed: bool) -> dict[str, Any]:
    """The fields of a JSON line of kind `schedule`."""
    from runs.unattended.firings import holder_of
    from runs.unattended.surroundings import local_zone

    due = None if schedule.paused else schedule.cron.after(datetime.now(UTC), local_zone())
    return {
        **schedule.to_record(),
        "next": None if due is None else f"{due:%Y-%m-%dT%H:%M:%SZ}",
        "installed": installed,
        "held_by": holder_of(schedule.name),
        "last": None if not firings else firings[-1].to_record(),
    }


def due_words(schedule: Schedule) -> str:
    """When it is due next, by the clock on the wall."""
    from runs.unattended.surroundings import local_zone

    if schedule.paused:
        return "paused"
    zone = local_zone()
    return f"{schedule.cron.after(datetime.now(UTC), zone).astimezone(zone):%Y-%m-%d %H:%M}"


def warn_of_missing(common: Common, schedules: Schedules, installed: set[str]) -> None:
    """Say which schedules nothing fires: a crontab was edited, hibali was moved."""
    for name, each in sorted(schedules.schedules.items()):
        if not each.paused and each.by != "print" and name not in installed:
            common.output.warn(
                f"{name} does not stand in your {each.by} as it should: hibali schedule resume {name}"
            )


def outcome_words(firing: Firing | None) -> str:
    """How it went, in a word or two."""
    if firing is None:
        return "never run"
    if firing.state == "skipped":
        return f"skipped: {firing.because}"
    if firing.exit is None:
        return {"running": "running", "broken": "broken off"}.get(firing.state, firing.state)
    return "done" if firing.exit == 0 else f"exit {firing.exit}"


def tell_change(common: Common, schedules: Schedules, schedule: Schedule, change: str) -> None:
    """What was done to a schedule: a record for programs, and for people what fires it now."""
    from runs.unattended.installing import lines_of, lingers, systemd_answers

    printed = schedule.by == "print" and change != "removed"
    lines = lines_of(common.config, schedules, "print") if printed else []
    if common.json:
        fields = {"name": schedule.name, "change": change, "file": str(schedules.path), "by": schedule.by}
        common.output.record("schedule-change", {**fields, "lines": lines})
    elif lines:
        for line in lines:
            common.output.text(line + "\n")
    if change in {"removed", "paused"}:
        common.output.say(f"{schedule.name} is {change}; nothing fires it any more.")
        return
    by = {"cron": "by your crontab", "systemd": "by a timer of your systemd", "print": "by the lines above"}[
        schedule.by
    ]
    common.output.say(f"{schedule.name} is {change}, and fired {by}; next: {due_words(schedule)}.")
    if schedule.by == "systemd" and not lingers():
        common.output.warn("Timers stop while you are logged out. To let them go on: loginctl enable-linger")
    if schedule.by == "systemd" and not systemd_answers():
        common.output.warn(
            "No systemd of yours answers now: the files are written, and it finds them when it starts."
        )


def tell_obstacles(common: Common, name: str, obstacles: Sequence[HibaliError]) -> None:
    """What will be in the way; raises the first of what a person has to mend, else of what may pass."""
    if common.json:
        records = [problem.to_record() for problem in obstacles]
        common.output.record("schedule-check", {"name": name, "obstacles": records})
    if not obstacles:
        return
    worst = min(obstacles, key=lambda problem: 0 if int(problem.exit) == 4 else 1)
    for problem in obstacles:
        if problem is not worst:
            tell_people(problem)
    raise worst
