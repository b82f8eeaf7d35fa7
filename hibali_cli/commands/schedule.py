"""`hibali schedule`: commands that run by themselves."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from hibali.amounts import size_words, time_words
from hibali.errors import IncompleteError, NotFoundError, RefusedError, UsageError
from hibali_cli.command import command, command_group
from hibali_cli.failure import tell_people
from hibali_cli.handlers.schedules import (
    UNFIT,
    check_words,
    due_words,
    find_problems,
    outcome_words,
    schedule_fields,
    tell_change,
    tell_problems,
    warn_of_missing,
)
from hibali_cli.options import OUTPUT_FILE, Common, duration_of

if TYPE_CHECKING:
    from runs.schedules.schedule import Installer, Missed, Schedule


_ADD_EXAMPLES = [
    (
        'hibali schedule add nightly --cron "0 3 * * *" --jitter 20m --max-time 4h -- push /data bucket:data',
        "Push every night at three, up to 20 minutes later, for four hours at most.",
    ),
    (
        "hibali schedule add hourly-results --cron @hourly --missed once --retry-for 30m -- pull juwels:results results",
        "Make up for what was missed, and try again for half an hour where the site does not answer.",
    ),
]


@command("add", examples=_ADD_EXAMPLES)
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
def add_command(common: Common, name: str, words: tuple[str, ...], **options: object) -> int | None:
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


@command(
    "check",
    examples=[("hibali schedule check nightly", "See now whether nightly will work at three o'clock.")],
)
@click.argument("name")
def check_command(common: Common, name: str) -> int | None:
    """Check whether a schedule can work unattended: its command, keys, certificates, host keys, secrets, and what it reads and writes.

    The login is as bare as that of cron.
    """
    from runs.schedules.schedule import load_schedules

    schedule = load_schedules(common.config).one(name)
    tell_problems(common, name, find_problems(common, schedule))
    common.output.say(f"{name}: all checks passed.")
    return None


@command("list", examples=[("hibali schedule list", "See every schedule, when it is due and how it went.")])
def list_command(common: Common) -> int | None:
    """List the schedules of this configuration."""
    from runs.schedules.install import installed_names
    from runs.schedules.records import read_triggers
    from runs.schedules.schedule import load_schedules

    known = load_schedules(common.config)
    found = [(known.schedules[name], read_triggers(name)) for name in sorted(known.schedules)]
    installed = installed_names(common.config, known)
    if common.json:
        for schedule, firings in found:
            common.output.record(
                "schedule", schedule_fields(schedule, firings, installed=schedule.name in installed)
            )
        common.output.record("end", {"count": len(found), "exit": 0})
        return None
    rows = [
        (
            schedule.name,
            schedule.cron.text,
            due_words(schedule),
            outcome_words(firings[-1] if firings else None),
            " ".join(schedule.command),
        )
        for schedule, firings in found
    ]
    warn_of_missing(common, known, installed)
    common.output.table(["name", "cron", "next", "last", "command"], rows)
    if not found:
        common.output.say('No schedules yet: hibali schedule add NAME --cron "0 3 * * *" -- push ...')
    return None


_LOG_EXAMPLES = [
    ("hibali schedule log nightly", "See how the last 30 runs of nightly went."),
    ("hibali schedule log nightly --text -n 100", "Read the last 100 lines of what it said."),
]


@command("log", examples=_LOG_EXAMPLES)
@click.argument("name")
@click.option(
    "-n", "count", type=click.IntRange(1), default=30, show_default=True, help="So many of the last ones."
)
@click.option("--text", is_flag=True, help="What the runs said, instead of how they went.")
def log_command(common: Common, name: str, *, count: int, text: bool) -> int | None:
    """Show how the runs of a schedule went, the last one last."""
    from runs.schedules.records import read_triggers, triggered_schedules
    from runs.schedules.schedule import load_schedules

    if name not in triggered_schedules():
        load_schedules(common.config).one(name)
    if text:
        _show_text(common, name, count)
        return None
    firings = read_triggers(name)[-count:]
    if common.json:
        for firing in firings:
            common.output.record("firing", firing.to_record())
        common.output.record("end", {"count": len(firings), "exit": 0})
        return None
    rows = [
        (
            f"{datetime.fromisoformat(each.began).astimezone():%Y-%m-%d %H:%M:%S}",
            outcome_words(each) + (" (made up)" if each.made_up else ""),
            None if each.seconds is None else time_words(each.seconds),
            each.amount("files_moved") if each.amounts else None,
            size_words(each.amount("bytes_moved")) if each.amounts else None,
            each.amount("files_failed") if each.amounts else None,
            each.proof,
            each.message or (each.operations or each.runs or (None,))[-1],
        )
        for each in firings
    ]
    common.output.table(["began", "how", "took", "files", "bytes", "failed", "proof", "what"], rows)
    return None


def _show_text(common: Common, name: str, count: int) -> None:
    from runs.schedules.records import log_path

    try:
        lines = log_path(name).read_bytes().splitlines()
    except FileNotFoundError:
        raise NotFoundError("no-log", "nothing was said yet", about=name) from None
    if common.json:
        common.output.record(
            "log",
            {"id": name, "stream": "stderr", "text": b"\n".join(lines[-count:]).decode("utf-8", "replace")},
        )
        return
    for line in lines[-count:]:
        common.output.line(line)


_METRICS_EXAMPLES = [
    ("hibali schedule metrics", "See the metrics as they are now."),
    (
        "hibali schedule metrics --file /var/lib/node_exporter/textfile/hibali.prom",
        "Keep them in a file that node_exporter reads, renewed after each run.",
    ),
]


@command("metrics", examples=_METRICS_EXAMPLES)
@click.option(
    "--file",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write them there now, and again after each run of a schedule.",
)
@click.option("--off", is_flag=True, help="Write them nowhere any more; the file stays.")
def metrics_command(common: Common, *, file: str | None, off: bool) -> int | None:
    """Write OpenMetrics about schedules: last success, duration, bytes, files, failures, proof, and what expires."""
    from runs.schedules.schedule import load_schedules, put_metrics_file
    from runs.schedules.tend import all_credentials, current_metrics, write_metrics

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
    common.output.say(f"The metrics are in {path}, and renewed after each run.")
    return None


_NOTIFY_EXAMPLES = [
    (
        "hibali schedule notify --mail me@example.org --test",
        "Have trouble told by mail, and see that it arrives.",
    ),
    (
        "hibali schedule notify --webhook https://chat.example.org/hooks/{secret} --secret-file ~/.hook",
        "Have it told in a chat; what is in the file takes the place of {secret}.",
    ),
    (
        "hibali schedule notify --command 'tee -a notices.jsonl'",
        "Have it told to a command, as JSON on its standard input.",
    ),
]


@command("notify", examples=_NOTIFY_EXAMPLES)
@click.option(
    "--command", "words", metavar="WORDS", help="Run this with the notice as JSON on its standard input."
)
@click.option("--mail", metavar="ADDRESS", help="Send it there, by this machine's sendmail.")
@click.option("--webhook", metavar="URL", help="POST it there as JSON.")
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
    help="Tell so long before a credential expires; 7.",
)
@click.option("--off", is_flag=True, help="Tell nobody any more.")
@click.option("--test", is_flag=True, help="Give a notice of trial, now.")
def notify_command(common: Common, **options: Any) -> int | None:
    """Say who is told of trouble with schedules, and see who is.

    Told is a failure, the first success after it, that nothing has run for too long, and a credential that will
    expire; the same trouble once a day for each schedule.
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
            raise UsageError("usage", "a secret is for a webhook: give --webhook, too", about="--secret-file")
    if given or off:
        path = put_notices(common.config, notices)
        common.output.say(f"Kept in {path}.")
    if test:
        if not notices.anybody:
            raise UsageError("usage", "nobody is told: give --command, --mail or --webhook", about="--test")
        problems = send_notice(
            notices, Notice("trial", "trial", "trial", "this is a trial: notices arrive here")
        )
        for problem in problems:
            tell_people(problem)
        if problems:
            raise IncompleteError(
                "not-notified", "not everybody could be told", about="hibali schedule notify"
            )
    if common.json:
        common.output.record(
            "notices", {**_shown(notices), "expires_within_days": notices.expires_within_days}
        )
    else:
        common.output.pairs({key: value or None for key, value in _shown(notices).items()})
    return None


def _read(given: dict[str, Any]) -> dict[str, Any]:
    from hibali.amounts import read_words
    from hibali.http import check_post_url

    found: dict[str, Any] = {}
    for key, value in given.items():
        if key in {"words", "secret_command"}:
            try:
                found["command" if key == "words" else key] = read_words(value)
            except ValueError as problem:
                raise UsageError("bad-command", str(problem), about=f"--{key}") from None
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
    """Who is told, without what may be a secret: a webhook's path often is one."""
    webhook = notices.webhook
    if webhook and "{secret}" not in webhook:
        scheme, _, rest = webhook.partition("://")
        webhook = f"{scheme}://{rest.partition('/')[0]}/..."
    return {
        "command": notices.command[0] if notices.command else "",
        "mail": notices.mail,
        "webhook": webhook,
    }


@command("pause", examples=[("hibali schedule pause nightly", "Leave nightly out until further notice.")])
@click.argument("name")
def pause_command(common: Common, name: str) -> int | None:
    """Stop firing a schedule until it is resumed; a run that is going goes on."""
    from runs.schedules.install import put_and_install
    from runs.schedules.schedule import load_schedules

    schedule = load_schedules(common.config).one(name)
    schedule = replace(schedule, paused=True)
    known = put_and_install(common.config, schedule)
    tell_change(common, known, schedule, "paused")
    return None


@command(
    "remove",
    examples=[("hibali schedule remove nightly", "Forget nightly; what it moved and its record stay.")],
)
@click.argument("name")
def remove_command(common: Common, name: str) -> int | None:
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


@command("resume", examples=[("hibali schedule resume nightly", "Let nightly run again.")])
@click.argument("name")
def resume_command(common: Common, name: str) -> int | None:
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


@command("run", examples=[("hibali schedule run nightly", "Run nightly now, just as it runs at night.")])
@click.argument("name", required=False)
@click.option("--due", is_flag=True, help="Only if it is due; without NAME, all that were missed. For cron.")
def run_command(common: Common, name: str | None, *, due: bool) -> int | None:
    """Run a schedule's command now, with nothing but what cron gives; ends with its exit code."""
    from runs.schedules.records import forget_start
    from runs.schedules.schedule import load_schedules
    from runs.schedules.tend import make_up_all, tend
    from runs.schedules.trigger import trigger_due, trigger_now

    known = load_schedules(common.config)
    if name is None:
        if not due:
            raise UsageError(
                "usage", "name a schedule: hibali schedule run NAME", about="hibali schedule run"
            )
        forget_start(None)
        make_up_all(common.config, known, common.output.warn)
        return None
    schedule = known.one(name)
    if due:
        forget_start(name)
    firing = trigger_due(common.config, schedule) if due else trigger_now(common.config, schedule)
    if firing is None:
        return None
    tend(common.config, known, common.output.warn)
    if common.json:
        common.output.record("firing", firing.to_record())
    elif not due:
        moved = f"; {firing.amount('files_moved')} files moved" if firing.amounts else ""
        common.output.say(f"{name}: {outcome_words(firing)}{moved}; {firing.id}")
        if firing.exit and firing.message:
            common.output.warn(f"  {firing.message}")
            common.output.warn(f"  {firing.hint or f'hibali schedule log {name} --text'}")
    return firing.exit or 0


@command(
    "show",
    examples=[("hibali schedule show nightly", "See all that is set for nightly, and how it last went.")],
)
@click.argument("name")
def show_command(common: Common, name: str) -> int | None:
    """Show one schedule, when it is due, and its last run."""
    from runs.schedules.install import installed_names
    from runs.schedules.records import log_path, read_triggers
    from runs.schedules.schedule import load_schedules

    known = load_schedules(common.config)
    schedule = known.one(name)
    firings = read_triggers(name)
    installed = installed_names(common.config, known)
    if common.json:
        common.output.record("schedule", schedule_fields(schedule, firings, installed=name in installed))
        return None
    warn_of_missing(common, replace(known, schedules={name: schedule}), installed)
    last = firings[-1] if firings else None
    values: dict[str, str | int | None] = {
        "name": schedule.name,
        "command": shlex.join(["hibali", *schedule.command]),
        "next": due_words(schedule),
        "last": outcome_words(last),
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
    help_text="Let commands run by themselves at set times, and see how that goes.",
)
