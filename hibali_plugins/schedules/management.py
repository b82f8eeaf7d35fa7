"""Add, change, run and show schedules."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

from hibali.amounts import format_duration, format_size
from hibali.errors import NotFoundError, RefusedError, UsageError
from hibali.files import read_regular
from hibali.text import counted
from hibali_cli.cells import id_cell, time_cell
from hibali_cli.failure import Failures
from hibali_cli.fields import write_list
from hibali_cli.options import Common
from hibali_cli.output import Cell
from hibali_plugins.schedules.install import (
    choose_installer,
    drop_and_install,
    install,
    installed_names,
    lines_of,
    lingers,
    put_and_install,
    systemd_is_available,
)
from hibali_plugins.schedules.records import (
    Trigger,
    log_path,
    read_triggers,
    schedule_folder,
    triggered_schedules,
    truncate_start_log,
)
from hibali_plugins.schedules.schedule import (
    Expression,
    Installer,
    Missed,
    Schedule,
    Schedules,
    check_name,
    check_variable,
    expression_of_interval,
    load_schedules,
    read_expression,
)
from hibali_plugins.schedules.status import format_next_run, format_outcome, next_run, schedule_fields
from transfers.planning.overlap import forget_roots


def warn_of_missing(common: Common, schedules: Schedules, installed: set[str]) -> None:
    """Warn of schedules without a trigger: the crontab was edited, or hibali was moved."""
    for name, each in sorted(schedules.schedules.items()):
        if not each.paused and each.by != "print" and name not in installed:
            common.output.warn(
                f"{name} is missing from your {each.by} or was changed there. To install it again: hibali schedule resume {name}"
            )


def print_change(common: Common, schedules: Schedules, schedule: Schedule, change: str) -> None:
    """Report a change of a schedule: as a JSON record, or for users with its trigger."""
    printed = schedule.by == "print" and change != "removed"
    lines = lines_of(common.config, schedules, "print") if printed else []
    if common.json:
        fields = {"name": schedule.name, "change": change, "file": str(schedules.path), "by": schedule.by}
        common.output.record("schedule-change", {**fields, "lines": lines})
    elif lines:
        for line in lines:
            common.output.text(line + "\n")
    if change in {"removed", "paused"}:
        common.output.info(f"{schedule.name} is {change}, and has no trigger now.")
        return
    by = {"cron": "by your crontab", "systemd": "by a timer of your systemd", "print": "by the lines above"}[
        schedule.by
    ]
    done = "exists already" if change == "same" else f"is {change}"
    common.output.info(
        f"{schedule.name} {done}, and is triggered {by}; next run: {format_next_run(schedule)}."
    )
    if schedule.by == "systemd" and not lingers():
        common.output.warn(
            "Timers stop while you are logged out. To keep them running: loginctl enable-linger"
        )
    if schedule.by == "systemd" and not systemd_is_available():
        common.output.warn(
            "Your systemd cannot be reached now. The files are written; systemd will read them when it starts."
        )


def add_schedule(common: Common, name: str, words: tuple[str, ...], **options: object) -> int | None:
    """Check a command and schedule it."""
    # start-up: only this command checks another one, with the modules of transfers and runs
    from hibali_plugins.schedules.check import find_problems, print_problems

    by = options["by"]
    known = load_schedules(common.config)
    schedule = _read_schedule(common, name, words, options)
    before = known.schedules.get(name)
    if before is not None and not options["replacing"]:
        if replace(schedule, since=before.since, by=before.by if by is None else schedule.by) == before:
            install(common.config, known)
            print_change(common, known, before, "same")
            return None
        raise RefusedError(
            "schedule-differs",
            f"another schedule with this name exists in {known.path}",
            subject=name,
            hint=f"See `hibali schedule show {name}`. To replace it, add --replace.",
        )
    problems = find_problems(common, schedule, connect=not options["no_check"])
    if problems:
        print_problems(common, name, problems, adding=True)
    if by is None:
        schedule = replace(schedule, by=choose_installer())
    known = put_and_install(common.config, schedule)
    forget_roots(schedule_folder(name))
    print_change(common, known, schedule, "added" if before is None else "replaced")
    return None


def _read_schedule(common: Common, name: str, words: tuple[str, ...], options: dict[str, object]) -> Schedule:
    # start-up: as above
    from hibali_plugins.schedules.check import UNSAFE_CHARACTERS, check_argv, pin_default_site

    folder = os.getcwd()  # noqa: PTH109  # a folder as the user sees it
    if UNSAFE_CHARACTERS.search(folder):
        raise UsageError("bad-folder", "the name of this folder cannot be stored", subject=ascii(folder))
    given = dict(check_variable(text) for text in cast("tuple[str, ...]", options["env"]))
    command, environment = pin_default_site(common, check_argv(words), given)
    return Schedule(
        name=check_name(name),
        cron=_expression(options["cron"], options["every"]),
        command=command,
        folder=folder,
        since=datetime.now(UTC).replace(microsecond=0),
        by=cast("Installer", options["by"] or "cron"),
        jitter=_seconds(options["jitter"]),
        max_time=common.max_seconds or 0.0,
        retry_for=_seconds(options["retry_for"]),
        missed=cast("Missed", options["missed"]),
        silent_after=_seconds(options["silent_after"]),
        environment=environment,
    )


def _expression(cron: object, every: object) -> Expression:
    """Return the times of --cron or --every. Raises `UsageError` for both, for none, and for invalid ones."""
    if (cron is None) == (every is None):
        raise UsageError("usage", "give one of --cron and --every", hint="See: hibali schedule add --help")
    return read_expression(str(cron)) if every is None else expression_of_interval(_seconds(every))


def _seconds(value: object) -> float:
    return value if isinstance(value, float) else 0.0


def list_schedules(common: Common, fields: tuple[str, ...] | None) -> int | None:
    """List the schedules of this configuration."""
    known = load_schedules(common.config)
    found = [(known.schedules[name], read_triggers(name)) for name in sorted(known.schedules)]
    installed = installed_names(common.config, known)
    records = (
        schedule_fields(schedule, triggers, installed=schedule.name in installed)
        for schedule, triggers in found
    )
    if write_list(common, "schedule", records, fields):
        return None
    rows = [
        (
            schedule.name,
            schedule.cron.text,
            "paused"
            if schedule.paused
            else time_cell(next_run(schedule).isoformat(), format_next_run(schedule)),
            format_outcome(triggers[-1] if triggers else None),
            " ".join(schedule.command),
        )
        for schedule, triggers in found
    ]
    warn_of_missing(common, known, installed)
    common.output.table(["name", "cron", "next", "last", "command"], rows)
    if not found:
        common.output.info(
            'No schedules yet. To add one: hibali schedule add NAME --cron "0 3 * * *" -- push ...'
        )
    return None


def show_log(common: Common, name: str, *, count: int, text: bool) -> int | None:
    """Show the results of a schedule's runs, or their output."""
    if name not in triggered_schedules():
        load_schedules(common.config).one(name)
    if text:
        _show_output(common, name, count)
        return None
    triggers = read_triggers(name)[-count:]
    if write_list(common, "firing", (trigger.to_record() for trigger in triggers)):
        return None
    rows = [
        (
            time_cell(each.began, f"{datetime.fromisoformat(each.began).astimezone():%Y-%m-%d %H:%M:%S}"),
            format_outcome(each) + (" (catch-up)" if each.made_up else ""),
            None if each.seconds is None else format_duration(each.seconds),
            each.amount("files_moved") if each.amounts else None,
            format_size(each.amount("bytes_moved")) if each.amounts else None,
            each.amount("files_failed") if each.amounts else None,
            each.proof,
            each.message or _work_of(each),
        )
        for each in triggers
    ]
    common.output.table(["began", "result", "duration", "files", "size", "failed", "proof", "message"], rows)
    return None


def _work_of(trigger: Trigger) -> Cell:
    ids = trigger.operations or trigger.runs
    return id_cell(ids[-1]) if ids else None


def _show_output(common: Common, name: str, count: int) -> None:
    try:
        lines = read_regular(log_path(name)).splitlines()
    except FileNotFoundError:
        raise NotFoundError("no-log", "the schedule has no output yet", subject=name) from None
    if common.json:
        common.output.record(
            "log",
            {"id": name, "stream": "stderr", "text": b"\n".join(lines[-count:]).decode("utf-8", "replace")},
        )
        return
    for line in lines[-count:]:
        common.output.line(line)


def pause_schedule(common: Common, name: str) -> int | None:
    """Pause a schedule."""
    schedule = load_schedules(common.config).one(name)
    schedule = replace(schedule, paused=True)
    known = put_and_install(common.config, schedule)
    print_change(common, known, schedule, "paused")
    return None


def remove_schedules(common: Common, names: Sequence[str]) -> int:
    """Remove each schedule; raise the worst failure at the end."""
    failures = Failures(json=common.json)
    for name in dict.fromkeys(names):
        with failures.collect():
            _remove_schedule(common, name)
    return failures.end()


def _remove_schedule(common: Common, name: str) -> None:
    schedule = load_schedules(common.config).one(name)
    known = drop_and_install(common.config, name)
    forget_roots(schedule_folder(name))
    print_change(common, known, schedule, "removed")


def resume_schedule(common: Common, name: str) -> int | None:
    """Resume a paused schedule."""
    schedule = load_schedules(common.config).one(name)
    schedule = replace(schedule, paused=False, since=datetime.now(UTC).replace(microsecond=0))
    known = put_and_install(common.config, schedule)
    forget_roots(schedule_folder(name))
    print_change(common, known, schedule, "resumed")
    return None


def run_schedule(common: Common, name: str | None, *, due: bool) -> int | None:
    """Run a schedule's command now; return its exit code."""
    # start-up: only this command starts others
    from hibali_plugins.schedules.maintenance import maintain, run_missed
    from hibali_plugins.schedules.trigger import trigger_due, trigger_now

    known = load_schedules(common.config)
    if name is None:
        if not due:
            raise UsageError(
                "usage",
                "the name of a schedule is missing: hibali schedule run NAME",
                subject="hibali schedule run",
            )
        truncate_start_log(None)
        run_missed(common.config, known, common.output.warn)
        return None
    schedule = known.one(name)
    if due:
        truncate_start_log(name)
    trigger = trigger_due(common.config, schedule) if due else trigger_now(common.config, schedule)
    if trigger is None:
        return None
    maintain(common.config, known, common.output.warn)
    if common.json:
        common.output.record("firing", trigger.to_record())
    elif not due:
        moved = f"; {counted(trigger.amount('files_moved'), 'file')} moved" if trigger.amounts else ""
        common.output.info(f"{name}: {format_outcome(trigger)}{moved}; {trigger.id}")
        if trigger.exit and trigger.message:
            common.output.warn(f"  {trigger.message}")
            common.output.warn(f"  {trigger.hint or f'hibali schedule log {name} --text'}")
    return trigger.exit or 0


def show_schedule(common: Common, name: str) -> int | None:
    """Show one schedule and its last run."""
    known = load_schedules(common.config)
    schedule = known.one(name)
    triggers = read_triggers(name)
    installed = installed_names(common.config, known)
    if common.json:
        common.output.record("schedule", schedule_fields(schedule, triggers, installed=name in installed))
        return None
    warn_of_missing(common, replace(known, schedules={name: schedule}), installed)
    last = triggers[-1] if triggers else None
    values: dict[str, str | int | None] = {
        "name": schedule.name,
        "command": shlex.join(["hibali", *schedule.command]),
        "next": format_next_run(schedule),
        "last": format_outcome(last),
        "log": str(log_path(name)),
        "file": str(known.path),
    }
    shown = {key: value for key, value in schedule.to_table().items() if key not in {"command", "paused"}}
    for key, value in shown.items():
        values[key] = (
            " ".join(f"{a}={b}" for a, b in value.items()) if isinstance(value, dict) else str(value)
        )
    if last is not None and last.message:
        values["message"] = last.message
        values["hint"] = last.hint
    common.output.pairs(values)
    return None
