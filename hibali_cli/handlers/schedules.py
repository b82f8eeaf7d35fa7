"""Show schedules, and check the command line that each runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hibali.errors import HibaliError, TryLaterError, UsageError
from hibali_cli.failure import tell_people
from hibali_cli.options import Common

if TYPE_CHECKING:
    from runs.schedules.records import Trigger
    from runs.schedules.schedule import Schedule, Schedules


UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and halves of what is not UTF-8


def check_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words behind `hibali` of a command that can be scheduled; raises `UsageError` for any other, as typing it would."""
    from hibali_cli.handlers.schedule_check import parse_command

    given = list(words[1:] if words[:1] == ("hibali",) else words)
    if not given or given[0] == "schedule":
        raise UsageError(
            "bad-command",
            "what is to be run stands behind --, as in: -- push /data bucket:data",
            subject="hibali schedule add",
        )
    for word in given:
        if UNFIT.search(word):
            raise UsageError(
                "bad-command",
                "a word with a newline, another control character or what is not UTF-8 cannot be kept",
                subject=ascii(word),
                hint="Name the folder above it.",
            )
    parse_command(given)
    return tuple(given)


def schedule_fields(schedule: Schedule, firings: Sequence[Trigger], *, installed: bool) -> dict[str, Any]:
    """The fields of a JSON line of kind `schedule`."""
    from runs.schedules.environment import local_zone
    from runs.schedules.records import holder_of

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
    from runs.schedules.environment import local_zone

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


def outcome_words(firing: Trigger | None) -> str:
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
    from runs.schedules.install import lines_of, lingers, systemd_answers

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


def find_problems(common: Common, schedule: Schedule, *, connect: bool = True) -> list[HibaliError]:
    """Find what will keep a schedule from working: what is wrong with its command, then what keeps it from its sites and its
    endpoints.

    Each step is taken only where the one before found nothing; without `connect` only the first.
    """
    from hibali_cli.handlers.schedule_check import find_closed_ends, find_ends, find_mistakes
    from runs.schedules.preflight import find_schedule_problems

    found = find_mistakes(common, schedule)
    if found or not connect:
        return found
    ends = find_ends(common, schedule)
    found = find_schedule_problems(common.config, common.settings(), schedule, datetime.now(UTC), ends)
    return found or find_closed_ends(common, schedule, ends)


def tell_problems(
    common: Common, name: str, problems: Sequence[HibaliError], *, adding: bool = False
) -> None:
    """Report them all; raise the first of what a person has to correct, else of what may pass."""
    if common.json:
        records = [problem.to_record() for problem in problems]
        common.output.record("schedule-check", {"name": name, "obstacles": records})
    if not problems:
        return
    worst = min(problems, key=lambda problem: 1 if int(problem.exit) == 5 else 0)
    for problem in problems:
        if problem is not worst:
            tell_people(problem)
    if adding and isinstance(worst, TryLaterError):
        worst.hint = f"{worst.hint} To add the schedule all the same: --no-check".strip()
    raise worst
