"""`hibali schedule`: run commands at set times."""

from __future__ import annotations

from typing import Any

import click

from hibali_cli.command import Section, command, command_group
from hibali_cli.fields import SCHEDULE, fields_option
from hibali_cli.options import COUNT, OUTPUT_FILE, Common, duration_of

_ADD_EXAMPLES = [
    (
        'hibali schedule add nightly --cron "0 3 * * *" --jitter 20m --max-time 4h -- push /data bucket:data',
        "Push every night at three, with a random delay of up to 20 minutes, for at most four hours.",
    ),
    (
        "hibali schedule add results --every 6h --missed once --retry-for 30m -- pull juwels:results results",
        "Run once after missed times, and retry for half an hour if the site does not answer.",
    ),
]


@command("add", examples=_ADD_EXAMPLES)
@click.argument("name")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--cron", metavar="EXPRESSION", help='The time, as in a crontab: "0 3 * * *".')
@click.option(
    "--every",
    callback=duration_of,
    metavar="DURATION",
    help="The interval instead, counted from midnight: 15m, 6h, 1d or 7d.",
)
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
    """Run COMMAND, a command of hibali, at set times.
    The command is checked first: its options, sites, pipelines and direction. Then hibali connects in an environment as minimal as that
    of cron, and opens what the command reads and writes. Problems are reported now, and then nothing is changed. --no-check
    skips the connections, for a site that is down at the moment. --max-time limits each run. Relative paths
    start in the current folder.
    """
    from hibali_cli.handlers.schedules import add_schedule

    return add_schedule(common, name, words, options)


@command(
    "check",
    examples=[("hibali schedule check nightly", "Check now whether nightly will work unattended.")],
)
@click.argument("name")
def check_command(common: Common, name: str) -> int | None:
    """Check whether a schedule can work unattended: its command, keys, certificates, host keys, secrets, and what it reads and writes.

    The check runs in an environment as minimal as that of cron.
    """
    from hibali_cli.handlers.schedule_check import check_schedule

    return check_schedule(common, name)


@command(
    "list", examples=[("hibali schedule list", "Show every schedule, its next time and its last result.")]
)
@fields_option(SCHEDULE)
def list_command(common: Common, *, fields: tuple[str, ...] | None) -> int | None:
    """List the schedules of this configuration."""
    from hibali_cli.handlers.schedules import list_schedules

    return list_schedules(common, fields)


_LOG_EXAMPLES = [
    ("hibali schedule log nightly", "Show the results of the last 30 runs of nightly."),
    ("hibali schedule log nightly --text -n 100", "Show the last 100 lines of its output."),
]


@command("log", examples=_LOG_EXAMPLES)
@click.argument("name")
@click.option(
    "-n",
    "count",
    type=COUNT,
    default=30,
    show_default=True,
    help="The number of runs or lines to show.",
)
@click.option("--text", is_flag=True, help="Show the output of the runs instead of their results.")
def log_command(common: Common, name: str, *, count: int, text: bool) -> int | None:
    """Show the results of a schedule's runs, the latest last."""
    from hibali_cli.handlers.schedules import show_log

    return show_log(common, name, count=count, text=text)


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
    from hibali_cli.handlers.schedule_notices import write_metrics_file

    return write_metrics_file(common, file=file, off=off)


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
    from hibali_cli.handlers.schedule_notices import set_up_notices

    return set_up_notices(common, options)


@command("pause", examples=[("hibali schedule pause nightly", "Pause nightly until it is resumed.")])
@click.argument("name")
def pause_command(common: Common, name: str) -> int | None:
    """Pause a schedule until it is resumed; an active run continues."""
    from hibali_cli.handlers.schedules import pause_schedule

    return pause_schedule(common, name)


@command(
    "remove",
    examples=[("hibali schedule remove nightly", "Remove nightly; transferred files and its log are kept.")],
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def remove_command(common: Common, names: tuple[str, ...]) -> int | None:
    """Remove schedules, and their lines from where they were installed.

    Their logs and the records of their runs are kept; an active run continues. Each is tried, and the exit code is that of the
    worst failure.
    """
    from hibali_cli.handlers.schedules import remove_schedules

    return remove_schedules(common, names)


@command("resume", examples=[("hibali schedule resume nightly", "Resume nightly.")])
@click.argument("name")
def resume_command(common: Common, name: str) -> int | None:
    """Resume a paused schedule; times that passed meanwhile are not made up.

    This also accepts the current target folders of its transfers, where they were replaced by others.
    """
    from hibali_cli.handlers.schedules import resume_schedule

    return resume_schedule(common, name)


@command("run", examples=[("hibali schedule run nightly", "Run nightly now, exactly as at its set time.")])
@click.argument("name", required=False)
@click.option(
    "--due", is_flag=True, help="Run only if it is due; without NAME, all missed schedules. For cron."
)
def run_command(common: Common, name: str | None, *, due: bool) -> int | None:
    """Run a schedule's command now in an environment as minimal as that of cron; exits with its code."""
    from hibali_cli.handlers.schedules import run_schedule

    return run_schedule(common, name, due=due)


@command(
    "show",
    examples=[("hibali schedule show nightly", "Show the settings of nightly and its last result.")],
)
@click.argument("name")
def show_command(common: Common, name: str) -> int | None:
    """Show one schedule, when it is due, and its last run."""
    from hibali_cli.handlers.schedules import show_schedule

    return show_schedule(common, name)


schedule_command = command_group(
    "schedule",
    section=Section.REPORTS,
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
