"""`hibali schedule`: run commands at set times."""

from __future__ import annotations

import contextlib

import click

from hibali.errors import HibaliError
from hibali_cli.command import Section, command, command_group
from hibali_cli.fields import SCHEDULE, fields_option
from hibali_cli.options import COUNT, OUTPUT_FILE, duration_of


def _complete_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of schedules; click calls it."""
    del parameter
    from hibali_plugins.schedules.schedule import load_schedules  # start-up: only for this kind of word

    with contextlib.suppress(HibaliError, OSError, ValueError):
        names = sorted(load_schedules(context.params.get("config")).schedules)
        return [name for name in names if name.startswith(incomplete)]
    return []


_name_argument = click.argument("name", shell_complete=_complete_names)
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


@command("add", calls="hibali_plugins.schedules.management:add_schedule", examples=_ADD_EXAMPLES)
@click.argument("name", shell_complete=_complete_names)
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
def add_command() -> None:
    """Run COMMAND, a command of hibali, at set times.
    The command is checked first: its options, sites, pipelines and direction. Then hibali connects in an environment as minimal as that
    of cron, and opens what the command reads and writes. Problems are reported now, and then nothing is changed. --no-check
    skips the connections, for a site that is down at the moment. --max-time limits each run. Relative paths
    start in the current folder.
    """


@command(
    "check",
    calls="hibali_plugins.schedules.check:check_schedule",
    examples=[("hibali schedule check nightly", "Check now whether nightly will work unattended.")],
)
@_name_argument
def check_command() -> None:
    """Check whether a schedule can work unattended: its command, keys, certificates, host keys, secrets, and what it reads and writes.

    The check runs in an environment as minimal as that of cron.
    """


@command(
    "list",
    calls="hibali_plugins.schedules.management:list_schedules",
    examples=[("hibali schedule list", "Show every schedule, its next time and its last result.")],
)
@fields_option(SCHEDULE)
def list_command() -> None:
    """List the schedules of this configuration."""


_LOG_EXAMPLES = [
    ("hibali schedule log nightly", "Show the results of the last 30 runs of nightly."),
    ("hibali schedule log nightly --text -n 100", "Show the last 100 lines of its output."),
]


@command("log", calls="hibali_plugins.schedules.management:show_log", examples=_LOG_EXAMPLES)
@_name_argument
@click.option(
    "-n",
    "count",
    type=COUNT,
    default=30,
    show_default=True,
    help="The number of runs or lines to show.",
)
@click.option("--text", is_flag=True, help="Show the output of the runs instead of their results.")
def log_command() -> None:
    """Show the results of a schedule's runs, the latest last."""


_METRICS_EXAMPLES = [
    ("hibali schedule metrics", "Show the current metrics."),
    (
        "hibali schedule metrics -o /var/lib/node_exporter/textfile/hibali.prom",
        "Write them to a file for node_exporter, updated after each run.",
    ),
]


@command(
    "metrics", calls="hibali_plugins.schedules.notice_setup:write_metrics_file", examples=_METRICS_EXAMPLES
)
@click.option(
    "-o",
    "--output",
    "--file",
    "file",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write them to FILE now, and after each run of a schedule.",
)
@click.option("--off", is_flag=True, help="Stop writing them; the file is kept.")
def metrics_command() -> None:
    """Write OpenMetrics about schedules: last success, duration, bytes, files, failures, verification, and expiry times."""


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


@command("notify", calls="hibali_plugins.schedules.notice_setup:set_up_notices", examples=_NOTIFY_EXAMPLES)
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
def notify_command() -> None:
    """Set up notices about problems with schedules, or show the setup.

    Notices are sent for a failure, the first success after it, a schedule that did not run for too long, and a credential that will
    expire; the same problem at most once a day for each schedule.
    """


@command(
    "pause",
    calls="hibali_plugins.schedules.management:pause_schedule",
    examples=[("hibali schedule pause nightly", "Pause nightly until it is resumed.")],
)
@_name_argument
def pause_command() -> None:
    """Pause a schedule until it is resumed; an active run continues."""


@command(
    "remove",
    calls="hibali_plugins.schedules.management:remove_schedules",
    examples=[("hibali schedule remove nightly", "Remove nightly; transferred files and its log are kept.")],
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=_complete_names)
def remove_command() -> None:
    """Remove schedules, and their lines from where they were installed.

    Their logs and the records of their runs are kept; an active run continues. Each is tried, and the exit code is that of the
    worst failure.
    """


@command(
    "resume",
    calls="hibali_plugins.schedules.management:resume_schedule",
    examples=[("hibali schedule resume nightly", "Resume nightly.")],
)
@_name_argument
def resume_command() -> None:
    """Resume a paused schedule; times that passed meanwhile are not made up.

    This also accepts the current target folders of its transfers, where they were replaced by others.
    """


@command(
    "run",
    calls="hibali_plugins.schedules.management:run_schedule",
    examples=[("hibali schedule run nightly", "Run nightly now, exactly as at its set time.")],
)
@click.argument("name", required=False, shell_complete=_complete_names)
@click.option(
    "--due", is_flag=True, help="Run only if it is due; without NAME, all missed schedules. For cron."
)
def run_command() -> None:
    """Run a schedule's command now in an environment as minimal as that of cron; exits with its code."""


@command(
    "show",
    calls="hibali_plugins.schedules.management:show_schedule",
    examples=[("hibali schedule show nightly", "Show the settings of nightly and its last result.")],
)
@_name_argument
def show_command() -> None:
    """Show one schedule, when it is due, and its last run."""


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
