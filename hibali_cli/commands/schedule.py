"""`hibali schedule`: run commands at set times."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from hibali.amounts import format_duration, format_size
from hibali.errors import IncompleteError, NotFoundError, RefusedError, UsageError
from hibali_cli.command import command, command_group
from hibali_cli.failure import print_error
from hibali_cli.options import OUTPUT_FILE, Common, duration_of

if TYPE_CHECKING:
    from runs.schedules.schedule import Installer, Missed, Schedule


_ADD_EXAMPLES = [
    (
        'hibali schedule add nightly --cron "0 3 * * *" --jitter 20m --max-time 4h -- push /data bucket:data',
        "Push every night at three, with a random delay of up to 20 minutes, for at most four hours.",
    ),
    (
        "hibali schedule add hourly-results --cron @hourly --missed once --retry-for 30m -- pull juwels:results results",
        "Run once after missed times, and retry for half an hour if the site does not answer.",
    ),
]


@command("add", examples=_ADD_EXAMPLES)
@click.argument("name")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--cron", required=True, metavar="EXPRESSION", help='The time, as in a crontab: "0 3 * * *".')
@click.option(
    "--jitter", callback=duration_of, metavar="DURATION", help="Start with a random delay of up to this long."
)
@click.option(
    "--retry-for",
    callback=duration_of,
    metavar="DURATION",
    help="After exit code 5, retry with growing pauses for this long.",
)
@click.option(
    "--missed",
    type=click.Choice(["skip", "once"]),
    default="skip",
    show_default=True,
    help="After times at which the machine was off: skip them, or run once as soon as it is on.",
)
@click.option(
    "--silent-after",
    callback=duration_of,
    metavar="DURATION",
    help="Send a notice when nothing has run for this long (default: twice the usual interval).",
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="An environment variable for the command; never a secret; repeatable.",
)
@click.option(
    "--by",
    type=click.Choice(["cron", "systemd", "print"]),
    help="The trigger: your crontab, timers of your systemd, or yourself with the printed lines.",
)
@click.option("--replace", "replacing", is_flag=True, help="Replace an existing schedule with that name.")
@click.option("--no-check", is_flag=True, help="Check only the command itself; do not connect to its sites.")
def add_command(common: Common, name: str, words: tuple[str, ...], **options: object) -> int | None:
    """Run COMMAND, any of hibali's, at set times.

    The command is checked first: its options, sites, pipelines and direction. Then hibali connects in an environment as minimal as that
    of cron, and opens what the command reads and writes. Problems are reported now, and then nothing is changed. --no-check
    skips the connections, for a site that is down at the moment. --max-time limits each run. Relative paths
    start in the current folder.
    """
    from hibali_cli.handlers.schedules import find_problems, print_change, print_problems
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


def _schedule(common: Common, name: str, words: tuple[str, ...], options: dict[str, object]) -> Schedule:
    from hibali_cli.handlers.schedules import UNSAFE_CHARACTERS, check_argv
    from runs.schedules.schedule import Schedule, check_name, check_variable, read_expression

    folder = os.getcwd()  # noqa: PTH109  # a folder as the user sees it
    if UNSAFE_CHARACTERS.search(folder):
        raise UsageError("bad-folder", "the name of this folder cannot be stored", subject=ascii(folder))
    return Schedule(
        name=check_name(name),
        cron=read_expression(str(options["cron"])),
        command=check_argv(words),
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


@command(
    "check",
    examples=[("hibali schedule check nightly", "Check now whether nightly will work unattended.")],
)
@click.argument("name")
def check_command(common: Common, name: str) -> int | None:
    """Check whether a schedule can work unattended: its command, keys, certificates, host keys, secrets, and what it reads and writes.

    The check runs in an environment as minimal as that of cron.
    """
    from hibali_cli.handlers.schedules import find_problems, print_problems
    from runs.schedules.schedule import load_schedules

    schedule = load_schedules(common.config).one(name)
    print_problems(common, name, find_problems(common, schedule))
    common.output.info(f"{name}: all checks passed.")
    return None


@command(
    "list", examples=[("hibali schedule list", "Show every schedule, its next time and its last result.")]
)
def list_command(common: Common) -> int | None:
    """List the schedules of this configuration."""
    from hibali_cli.handlers.schedules import (
        format_next_run,
        format_outcome,
        schedule_fields,
        warn_of_missing,
    )
    from runs.schedules.install import installed_names
    from runs.schedules.records import read_triggers
    from runs.schedules.schedule import load_schedules

    known = load_schedules(common.config)
    found = [(known.schedules[name], read_triggers(name)) for name in sorted(known.schedules)]
    installed = installed_names(common.config, known)
    if common.json:
        for schedule, triggers in found:
            common.output.record(
                "schedule", schedule_fields(schedule, triggers, installed=schedule.name in installed)
            )
        common.output.record("end", {"count": len(found), "exit": 0})
        return None
    rows = [
        (
            schedule.name,
            schedule.cron.text,
            format_next_run(schedule),
            format_outcome(triggers[-1] if triggers else None),
            " ".join(schedule.command),
        )
        for schedule, triggers in found
    ]
    warn_of_missing(common, known, installed)
    common.output.table(["name", "cron", "next", "last", "command"], rows)
    if not found:
        common.output.info('No schedules yet: hibali schedule add NAME --cron "0 3 * * *" -- push ...')
    return None


_LOG_EXAMPLES = [
    ("hibali schedule log nightly", "Show the results of the last 30 runs of nightly."),
    ("hibali schedule log nightly --text -n 100", "Show the last 100 lines of its output."),
]


@command("log", examples=_LOG_EXAMPLES)
@click.argument("name")
@click.option(
    "-n",
    "count",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    help="The number of runs or lines to show.",
)
@click.option("--text", is_flag=True, help="Show the output of the runs instead of their results.")
def log_command(common: Common, name: str, *, count: int, text: bool) -> int | None:
    """Show the results of a schedule's runs, the latest last."""
    from hibali_cli.handlers.schedules import format_outcome
    from runs.schedules.records import read_triggers, triggered_schedules
    from runs.schedules.schedule import load_schedules

    if name not in triggered_schedules():
        load_schedules(common.config).one(name)
    if text:
        _show_text(common, name, count)
        return None
    triggers = read_triggers(name)[-count:]
    if common.json:
        for trigger in triggers:
            common.output.record("firing", trigger.to_record())
        common.output.record("end", {"count": len(triggers), "exit": 0})
        return None
    rows = [
        (
            f"{datetime.fromisoformat(each.began).astimezone():%Y-%m-%d %H:%M:%S}",
            format_outcome(each) + (" (made up)" if each.made_up else ""),
            None if each.seconds is None else format_duration(each.seconds),
            each.amount("files_moved") if each.amounts else None,
            format_size(each.amount("bytes_moved")) if each.amounts else None,
            each.amount("files_failed") if each.amounts else None,
            each.proof,
            each.message or (each.operations or each.runs or (None,))[-1],
        )
        for each in triggers
    ]
    common.output.table(["began", "how", "took", "files", "bytes", "failed", "proof", "what"], rows)
    return None


def _show_text(common: Common, name: str, count: int) -> None:
    from runs.schedules.records import log_path

    try:
        lines = log_path(name).read_bytes().splitlines()
    except FileNotFoundError:
        raise NotFoundError("no-log", "there is no output yet", subject=name) from None
    if common.json:
        common.output.record(
            "log",
            {"id": name, "stream": "stderr", "text": b"\n".join(lines[-count:]).decode("utf-8", "replace")},
        )
        return
    for line in lines[-count:]:
        common.output.line(line)


_METRICS_EXAMPLES = [
    ("hibali schedule metrics", "Show the current metrics."),
    (
        "hibali schedule metrics --file /var/lib/node_exporter/textfile/hibali.prom",
        "Write them to a file for node_exporter, updated after each run.",
    ),
]


@command("metrics", examples=_METRICS_EXAMPLES)
@click.option(
    "--file",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write them to FILE now, and after each run of a schedule.",
)
@click.option("--off", is_flag=True, help="Stop writing them; the file is kept.")
def metrics_command(common: Common, *, file: str | None, off: bool) -> int | None:
    """Write OpenMetrics about schedules: last success, duration, bytes, files, failures, verification, and expiry times."""
    from runs.schedules.maintenance import all_credentials, current_metrics, write_metrics
    from runs.schedules.schedule import load_schedules, put_metrics_file

    known = load_schedules(common.config)
    if off:
        put_metrics_file(common.config, "")
        return None
    credentials = all_credentials(common.config, known)
    if file is None:
        text = current_metrics(known, credentials)
        if common.json:
            common.output.record("metrics", {"file": known.metrics_file or None, "text": text})
        else:
            common.output.text(text)
        return None
    path = Path(file).expanduser().absolute()
    write_metrics(path, known, credentials)
    put_metrics_file(common.config, str(path))
    if common.json:
        common.output.record("metrics", {"file": str(path), "text": path.read_text("utf-8")})
    common.output.info(f"The metrics are in {path}, and are updated after each run.")
    return None


_NOTIFY_EXAMPLES = [
    (
        "hibali schedule notify --mail me@example.org --test",
        "Send notices by mail, with a test notice now.",
    ),
    (
        "hibali schedule notify --webhook https://chat.example.org/hooks/{secret} --secret-file ~/.hook",
        "Send notices to a chat; the content of the file replaces {secret}.",
    ),
    (
        "hibali schedule notify --command 'tee -a notices.jsonl'",
        "Send notices to a command, as JSON on its standard input.",
    ),
]


@command("notify", examples=_NOTIFY_EXAMPLES)
@click.option(
    "--command",
    "words",
    metavar="WORDS",
    help="Run this command with the notice as JSON on its standard input.",
)
@click.option("--mail", metavar="ADDRESS", help="Send notices to this address by this machine's sendmail.")
@click.option("--webhook", metavar="URL", help="POST notices to this URL as JSON.")
@click.option(
    "--secret-file",
    metavar="FILE",
    help="The webhook's secret: for {secret} in the URL, else a bearer token.",
)
@click.option("--secret-command", metavar="WORDS", help="A command that prints that secret.")
@click.option(
    "--expires-within",
    type=click.IntRange(0, 365),
    metavar="DAYS",
    help="Days before a credential expires (default: 7).",
)
@click.option("--off", is_flag=True, help="Stop sending notices.")
@click.option("--test", is_flag=True, help="Send a test notice now.")
def notify_command(common: Common, **options: Any) -> int | None:
    """Set up notices about problems with schedules, or show the setup.

    Notices are sent for a failure, the first success after it, a schedule that did not run for too long, and a credential that will
    expire; the same problem at most once a day for each schedule.
    """
    from runs.schedules.notices import Notice, send_notice
    from runs.schedules.schedule import Notices, load_schedules, put_notices

    off, test = options.pop("off"), options.pop("test")
    given = {key: value for key, value in options.items() if value is not None}
    notices = load_schedules(common.config).notices
    if off:
        notices = Notices(expires_within_days=notices.expires_within_days)
    if given:
        notices = replace(notices, **_read(given))
        if (notices.secret_file or notices.secret_command) and not notices.webhook:
            raise UsageError(
                "usage", "a secret is for a webhook: give --webhook, too", subject="--secret-file"
            )
    if given or off:
        path = put_notices(common.config, notices)
        common.output.info(f"Saved in {path}.")
    if test:
        if not notices.has_receiver:
            raise UsageError(
                "usage", "no notices are configured: give --command, --mail or --webhook", subject="--test"
            )
        problems = send_notice(
            notices, Notice("trial", "trial", "trial", "this is a test: notices arrive here")
        )
        for problem in problems:
            print_error(problem)
        if problems:
            raise IncompleteError(
                "not-notified", "not every notice could be sent", subject="hibali schedule notify"
            )
    if common.json:
        common.output.record(
            "notices", {**_shown(notices), "expires_within_days": notices.expires_within_days}
        )
    else:
        common.output.pairs({key: value or None for key, value in _shown(notices).items()})
    return None


def _read(given: dict[str, Any]) -> dict[str, Any]:
    from hibali.amounts import split_command
    from hibali.http import check_post_url

    found: dict[str, Any] = {}
    for key, value in given.items():
        if key in {"words", "secret_command"}:
            try:
                found["command" if key == "words" else key] = split_command(value)
            except ValueError as problem:
                raise UsageError("bad-command", str(problem), subject=f"--{key}") from None
        elif key == "expires_within":
            found["expires_within_days"] = value
        elif key == "secret_file":
            found[key] = str(Path(value).expanduser().absolute())
        else:
            found[key] = value
    if "webhook" in found:
        check_post_url(found["webhook"])
    return found


def _shown(notices: Any) -> dict[str, str]:
    """Return the configured notices without possible secrets: the path of a webhook often is one."""
    webhook = notices.webhook
    if webhook and "{secret}" not in webhook:
        scheme, _, rest = webhook.partition("://")
        webhook = f"{scheme}://{rest.partition('/')[0]}/..."
    return {
        "command": notices.command[0] if notices.command else "",
        "mail": notices.mail,
        "webhook": webhook,
    }


@command("pause", examples=[("hibali schedule pause nightly", "Pause nightly until it is resumed.")])
@click.argument("name")
def pause_command(common: Common, name: str) -> int | None:
    """Pause a schedule until it is resumed; an active run continues."""
    from hibali_cli.handlers.schedules import print_change
    from runs.schedules.install import put_and_install
    from runs.schedules.schedule import load_schedules

    schedule = load_schedules(common.config).one(name)
    schedule = replace(schedule, paused=True)
    known = put_and_install(common.config, schedule)
    print_change(common, known, schedule, "paused")
    return None


@command(
    "remove",
    examples=[("hibali schedule remove nightly", "Remove nightly; transferred files and its log are kept.")],
)
@click.argument("name")
def remove_command(common: Common, name: str) -> int | None:
    """Remove a schedule, and its line from where it was installed.

    Its log and the records of its runs are kept; an active run continues.
    """
    from hibali_cli.handlers.schedules import print_change
    from runs.schedules.install import drop_and_install
    from runs.schedules.records import schedule_folder
    from runs.schedules.schedule import load_schedules
    from transfers.overlap import forget_roots

    schedule = load_schedules(common.config).one(name)
    known = drop_and_install(common.config, name)
    forget_roots(schedule_folder(name))
    print_change(common, known, schedule, "removed")
    return None


@command("resume", examples=[("hibali schedule resume nightly", "Resume nightly.")])
@click.argument("name")
def resume_command(common: Common, name: str) -> int | None:
    """Resume a paused schedule; times that passed meanwhile are not made up.

    This also accepts the current target folders of its transfers, where they were replaced by others.
    """
    from hibali_cli.handlers.schedules import print_change
    from runs.schedules.install import put_and_install
    from runs.schedules.records import schedule_folder
    from runs.schedules.schedule import load_schedules
    from transfers.overlap import forget_roots

    schedule = load_schedules(common.config).one(name)
    schedule = replace(schedule, paused=False, since=datetime.now(UTC).replace(microsecond=0))
    known = put_and_install(common.config, schedule)
    forget_roots(schedule_folder(name))
    print_change(common, known, schedule, "resumed")
    return None


@command("run", examples=[("hibali schedule run nightly", "Run nightly now, exactly as at its set time.")])
@click.argument("name", required=False)
@click.option(
    "--due", is_flag=True, help="Run only if it is due; without NAME, all missed schedules. For cron."
)
def run_command(common: Common, name: str | None, *, due: bool) -> int | None:
    """Run a schedule's command now in an environment as minimal as that of cron; exits with its code."""
    from hibali_cli.handlers.schedules import format_outcome
    from runs.schedules.maintenance import maintain, run_missed
    from runs.schedules.records import truncate_start_log
    from runs.schedules.schedule import load_schedules
    from runs.schedules.trigger import trigger_due, trigger_now

    known = load_schedules(common.config)
    if name is None:
        if not due:
            raise UsageError(
                "usage", "name a schedule: hibali schedule run NAME", subject="hibali schedule run"
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
        moved = f"; {trigger.amount('files_moved')} files moved" if trigger.amounts else ""
        common.output.info(f"{name}: {format_outcome(trigger)}{moved}; {trigger.id}")
        if trigger.exit and trigger.message:
            common.output.warn(f"  {trigger.message}")
            common.output.warn(f"  {trigger.hint or f'hibali schedule log {name} --text'}")
    return trigger.exit or 0


@command(
    "show",
    examples=[("hibali schedule show nightly", "Show the settings of nightly and its last result.")],
)
@click.argument("name")
def show_command(common: Common, name: str) -> int | None:
    """Show one schedule, when it is due, and its last run."""
    from hibali_cli.handlers.schedules import (
        format_next_run,
        format_outcome,
        schedule_fields,
        warn_of_missing,
    )
    from runs.schedules.install import installed_names
    from runs.schedules.records import log_path, read_triggers
    from runs.schedules.schedule import load_schedules

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
        values["said"] = last.message
        values["then"] = last.hint
    common.output.pairs(values)
    return None


schedule_command = command_group(
    "schedule",
    commands=(
        add_command,
        check_command,
        list_command,
        log_command,
        metrics_command,
        notify_command,
        pause_command,
        remove_command,
        resume_command,
        run_command,
        show_command,
    ),
    help_text="Run commands at set times, and show their results.",
)
