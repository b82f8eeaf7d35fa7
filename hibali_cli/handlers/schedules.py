"""Show schedules, and check the command line that each runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from hibali.errors import HibaliError, TryLaterError, UsageError
from hibali_cli.failure import print_error
from hibali_cli.handlers.schedule_check import find_closed_ends, find_ends, find_mistakes, parse_command
from hibali_cli.options import Common
from runs.schedules.environment import local_zone
from runs.schedules.install import lines_of, lingers, systemd_answers
from runs.schedules.preflight import find_schedule_problems
from runs.schedules.records import Trigger, holder_of
from runs.schedules.schedule import Schedule, Schedules

UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and bytes that are not UTF-8


def check_words(words: Sequence[str]) -> tuple[str, ...]:
    """Check the arguments after `hibali` of a command to schedule; raises `UsageError` as running it would."""
    given = list(words[1:] if words[:1] == ("hibali",) else words)
    if not given or given[0] == "schedule":
        raise UsageError(
            "bad-command",
            "the command to run must follow --, as in: -- push /data bucket:data",
            subject="hibali schedule add",
        )
    for word in given:
        if UNFIT.search(word):
            raise UsageError(
                "bad-command",
                "an argument with a newline, another control character or invalid UTF-8 cannot be stored",
                subject=ascii(word),
                hint="Use the folder that contains it.",
            )
    parse_command(given)
    return tuple(given)


def schedule_fields(schedule: Schedule, firings: Sequence[Trigger], *, installed: bool) -> dict[str, Any]:
    """The fields of a JSON line of kind `schedule`."""
    due = None if schedule.paused else schedule.cron.after(datetime.now(UTC), local_zone())
    return {
        **schedule.to_record(),
        "next": None if due is None else f"{due:%Y-%m-%dT%H:%M:%SZ}",
        "installed": installed,
        "held_by": holder_of(schedule.name),
        "last": None if not firings else firings[-1].to_record(),
    }


def due_words(schedule: Schedule) -> str:
    """Format when it is due next, in local time."""
    if schedule.paused:
        return "paused"
    zone = local_zone()
    return f"{schedule.cron.after(datetime.now(UTC), zone).astimezone(zone):%Y-%m-%d %H:%M}"


def warn_of_missing(common: Common, schedules: Schedules, installed: set[str]) -> None:
    """Warn of schedules that nothing triggers: the crontab was edited, or hibali was moved."""
    for name, each in sorted(schedules.schedules.items()):
        if not each.paused and each.by != "print" and name not in installed:
            common.output.warn(
                f"{name} is missing from your {each.by} or was changed there. To install it again: hibali schedule resume {name}"
            )


def outcome_words(firing: Trigger | None) -> str:
    """Describe the result of a firing in a few words."""
    if firing is None:
        return "never run"
    if firing.state == "skipped":
        return f"skipped: {firing.because}"
    if firing.exit is None:
        return {"running": "running", "broken": "broken off"}.get(firing.state, firing.state)
    return "done" if firing.exit == 0 else f"exit {firing.exit}"


def tell_change(common: Common, schedules: Schedules, schedule: Schedule, change: str) -> None:
    """Report a change of a schedule: as a JSON record, or for users with what triggers it now."""
    printed = schedule.by == "print" and change != "removed"
    lines = lines_of(common.config, schedules, "print") if printed else []
    if common.json:
        fields = {"name": schedule.name, "change": change, "file": str(schedules.path), "by": schedule.by}
        common.output.record("schedule-change", {**fields, "lines": lines})
    elif lines:
        for line in lines:
            common.output.text(line + "\n")
    if change in {"removed", "paused"}:
        common.output.say(f"{schedule.name} is {change}; nothing triggers it any more.")
        return
    by = {"cron": "by your crontab", "systemd": "by a timer of your systemd", "print": "by the lines above"}[
        schedule.by
    ]
    common.output.say(f"{schedule.name} is {change}, and triggered {by}; next run: {due_words(schedule)}.")
    if schedule.by == "systemd" and not lingers():
        common.output.warn(
            "Timers stop while you are logged out. To keep them running: loginctl enable-linger"
        )
    if schedule.by == "systemd" and not systemd_answers():
        common.output.warn(
            "Your systemd does not answer now. The files are written; it will read them when it starts."
        )


def find_problems(common: Common, schedule: Schedule, *, connect: bool = True) -> list[HibaliError]:
    """Find what will keep a schedule from working: what is wrong with its command, then what keeps it from its sites and its
    endpoints.

    Each step is taken only where the one before found nothing; without `connect` only the first.
    """
    found = find_mistakes(common, schedule)
    if found or not connect:
        return found
    ends = find_ends(common, schedule)
    found = find_schedule_problems(common.config, common.settings(), schedule, datetime.now(UTC), ends)
    return found or find_closed_ends(common, schedule, ends)


def tell_problems(
    common: Common, name: str, problems: Sequence[HibaliError], *, adding: bool = False
) -> None:
    """Report all problems; raise the first that the user has to correct, else the first that may pass."""
    if common.json:
        records = [problem.to_record() for problem in problems]
        common.output.record("schedule-check", {"name": name, "obstacles": records})
    if not problems:
        return
    worst = min(problems, key=lambda problem: 1 if int(problem.exit) == 5 else 0)
    for problem in problems:
        if problem is not worst:
            print_error(problem)
    if adding and isinstance(worst, TryLaterError):
        worst.hint = f"{worst.hint} To add the schedule anyway: --no-check".strip()
    raise worst
