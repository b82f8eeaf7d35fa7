"""`hibali runs`: list, follow, collect, cancel and compare runs."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command, command_group
from hibali_cli.fields import RUN, fields_option
from hibali_cli.options import COUNT, OUTPUT_FILE, OUTPUT_PLACE, duration_of
from hibali_cli.run_options import notify_option

_PORT = click.IntRange(1, 65535)


@command(
    "adopt",
    calls="hibali_cli.handlers.run_folders:adopt_and_print",
    examples=[
        ("hibali runs adopt juwels", "List the runs at juwels that this machine does not know."),
        ("hibali runs adopt juwels --yes", "Adopt all of them that have a job."),
        ("hibali runs adopt juwels 20260102-030405-0a1b2c3d", "Adopt one run."),
    ],
)
@click.argument("named", metavar="[SITE|ID]...", nargs=-1)
@click.option("-y", "--yes", is_flag=True, help="Adopt all runs that can be adopted.")
def adopt_command() -> None:
    """Find runs that are not in this machine's ledger, and adopt them.

    A site can have runs of this account that were started on another machine, or before the state folder was lost. They are listed; with
    --yes, or by their ids, they are adopted and then managed as if they had been started here. Runs without a job, and runs
    that are being submitted now, are not adopted. Without SITE, all sites that can run jobs are searched.
    """


@command(
    "cancel",
    calls="hibali_cli.handlers.runs:cancel_all",
    examples=[("hibali runs cancel 20260102-030405-0a1b2c3d", "Cancel a run.")],
)
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
def cancel_command() -> None:
    """Cancel runs; one that has ended is not changed.
    Each is tried, and the exit code is that of the worst failure. A run that is not submitted yet is never submitted. If the command is killed, run it again to resume.
    """


@command(
    "clean",
    calls="hibali_cli.handlers.run_folders:clean_and_print",
    resumes=True,
    examples=[
        ("hibali runs clean --dry-run", "List the run folders that would be removed."),
        (
            "hibali runs clean --site juwels --older-than 30d",
            "Remove those at juwels that ended more than 30 days ago.",
        ),
        ("hibali runs clean ID --all-ended --yes", "Remove one run without collecting its outputs."),
    ],
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--site", "site_name", metavar="SITE", help="Only runs at SITE.")
@click.option(
    "--older-than", callback=duration_of, metavar="DURATION", help="Only runs that ended longer ago."
)
@click.option("--all-ended", is_flag=True, help="Also runs whose outputs were not collected.")
@click.option("-y", "--yes", is_flag=True, help="With --all-ended, do not ask for confirmation.")
@click.option("-n", "--dry-run", is_flag=True, help="Only list what would be removed.")
def clean_command() -> None:
    """Remove the folders of runs at their sites, after the runs have ended and their outputs were collected.

    The site's cache and the ledger's records of the runs are kept. Folders of unfinished and LOST runs are never
    removed. Each run is tried, and the exit code is that of the worst failure. If the command is killed, run it again to resume.
    """


@command(
    "collect",
    calls="hibali_cli.handlers.launch:collect_run",
    resumes=True,
    examples=[
        ("hibali runs collect 20260102-030405-0a1b2c3d results", "Pull the outputs into results/, verified."),
        (
            "hibali runs collect 20260102-030405-0a1b2c3d results --table results/all.csv",
            "Pull the outputs of a sweep's tasks into results/1/, results/2/ ..., and list them.",
        ),
        (
            "hibali runs collect 20260102-030405-0a1b2c3d --dataset study/derived",
            "Pull the outputs into a dataset, with a record of the run.",
        ),
    ],
)
@click.argument("run_id", metavar="ID")
@click.argument("folder", metavar="[DIR]", type=OUTPUT_PLACE, required=False)
@click.option(
    "--dataset",
    metavar="DIR",
    type=OUTPUT_FILE,
    help="Collect into DIR in a DataLad dataset, and save with a record for `datalad rerun`.",
)
@click.option(
    "--table",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="A .csv, .jsonl or .parquet file of a sweep's tasks and outputs.",
)
@click.option("--no-save", is_flag=True, help="Do not commit outputs that go into a dataset.")
def collect_command() -> None:
    """Pull the outputs of a run into DIR (default: ./ID), and verify them.

    The exit code is 7 if the run failed, 9 if its tool exited with 0 but a required output is missing, and 6 if an output of a successful
    run does not exist any more or is not a regular file. Of a sweep, all tasks that have ended are collected, each into a
    folder named by its number.
    """


def _states_of(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Read names of states, in upper case; raises `click.BadParameter` for unknown ones."""
    from runs.model import State

    words = tuple(word.strip().upper() for text in texts for word in text.split(","))
    known = [str(state) for state in State]
    for word in words:
        if word not in known:
            raise click.BadParameter(f"{word!r} is not one of {', '.join(known)}.", context, option)
    return words


@command(
    "list",
    calls="hibali_cli.handlers.runs:list_runs",
    examples=[
        ("hibali runs list", "List every run as it was last observed."),
        ("hibali runs list --update", "Query each site once first."),
        ("hibali runs list --state FAILED,LOST", "List only failed and lost runs."),
    ],
)
@click.option("--update", is_flag=True, help="Query each site with unfinished runs once.")
@click.option(
    "--state",
    "states",
    metavar="STATE,...",
    multiple=True,
    callback=_states_of,
    help="Only runs in one of these states, such as RUNNING,LOST; repeatable.",
)
@click.option("--site", "site_name", metavar="SITE", help="Only runs at SITE.")
@click.option("--last", type=COUNT, metavar="N", help="Only the latest N of them.")
@fields_option(RUN)
def list_command() -> None:
    """List runs, oldest first, as they were last observed.

    For people the latest 40 are shown, unless --last says how many; --json and --fields have all.
    """


@command(
    "logs",
    calls="hibali_cli.handlers.run_logs:print_logs",
    examples=[
        ("hibali runs logs 20260102-030405-0a1b2c3d", "Print the output of the tool."),
        ("hibali runs logs ID --task 17", "Print the output of one task of a sweep."),
        ("hibali runs logs ID --stderr >errors.txt", "Save its standard error unchanged."),
        ("hibali runs logs -f ID", "Follow both streams until the run has ended."),
    ],
)
@click.argument("run_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the run has ended.")
@click.option("--stderr", "stream", flag_value="stderr", help="The standard error of the tool.")
@click.option("--stdout", "stream", flag_value="stdout", help="The standard output of the tool.")
@click.option("--scheduler", "stream", flag_value="scheduler.log", help="The output of the job itself.")
@click.option("--task", type=COUNT, metavar="N", help="The number of a task of a sweep.")
def logs_command() -> None:
    """Print the standard output of a run's tool; on a terminal, control characters are escaped.

    Of a failed run, standard output and standard error are printed, one after the other, each with a heading.

    With --follow, standard output and standard error are printed to the same streams here, unless one is chosen; the command waits
    for a run that has not started.
    """


@command(
    "release",
    calls="hibali_cli.handlers.runs:release_and_show",
    examples=[
        ("hibali runs release 20260102-030405-0a1b2c3d", "Release a run that was started with --hold.")
    ],
)
@click.argument("run_id", metavar="ID")
def release_command() -> None:
    """Release a run that was started with `run --hold`.

    Releasing a run twice changes nothing. For a run that has ended, the exit code is 8.
    """


@command(
    "rerun",
    calls="hibali_cli.handlers.launch:rerun",
    resumes=True,
    examples=[
        ("hibali runs rerun 20260102-030405-0a1b2c3d", "Repeat a run with the same input values."),
        (
            "hibali runs rerun 20260102-030405-0a1b2c3d --failed --wait --collect results",
            "Run the failed tasks of a sweep again, and complete its results.",
        ),
    ],
)
@click.argument("run_id", metavar="ID")
@click.option(
    "--failed",
    is_flag=True,
    help="Only tasks that failed, were cancelled or are LOST; none if all succeeded.",
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for the end; exit 7 when the tool fails, 9 when a required output is missing.",
)
@click.option(
    "--collect",
    "folder",
    metavar="DIR",
    type=OUTPUT_PLACE,
    help="With --wait, pull the outputs into DIR afterwards.",
)
@click.option(
    "--table",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="With --wait, a .csv, .jsonl or .parquet file of a sweep's tasks.",
)
@click.option("--no-save", is_flag=True, help="With --collect, do not commit outputs that go into a dataset.")
def rerun_command() -> None:
    """Repeat a run as a new run; the tasks of a sweep keep their numbers.

    Running the same command again resumes the run that it started, until hibali has reported how that run ended; then it starts a
    new one.
    """


@command(
    "show",
    calls="hibali_cli.handlers.runs:query_and_show",
    examples=[("hibali runs show 20260102-030405-0a1b2c3d", "Show the state of a run.")],
)
@click.argument("run_id", metavar="ID")
def show_command() -> None:
    """Show a run, after querying its site once if it has not ended."""


@command(
    "tunnel",
    calls="hibali_cli.handlers.run_logs:tunnel",
    examples=[
        (
            "hibali runs tunnel 20260102-030405-0a1b2c3d 8888",
            "Open the notebook that a run serves at port 8888.",
        ),
        ("hibali runs tunnel ID 8787 --local 8787", "Open a dashboard at the same port of this machine."),
    ],
)
@click.argument("run_id", metavar="ID")
@click.argument("port", metavar="PORT", type=_PORT)
@click.option(
    "--local", "local_port", metavar="PORT", type=_PORT, help="The port here (default: any free one)."
)
@click.option("--task", type=COUNT, metavar="N", help="The number of a task of a sweep.")
def tunnel_command() -> None:
    """Forward a port of this machine to PORT at the node where a run's job runs, until the job ends.

    The connections use the login that exists. The port here accepts connections only from this machine (127.0.0.1), of all its users:
    protect what it leads to with a token or password. At another node than that of the login, the tool must listen at the node's own address.
    """


@command(
    "wait",
    calls="hibali_cli.handlers.run_watch:wait_and_report",
    examples=[
        (
            "hibali runs wait 20260102-030405-0a1b2c3d",
            "Wait for the end; exit 7 when the tool failed, 9 when a required output is missing.",
        ),
        ("hibali runs wait ID --max-time 10m", "Wait at most ten minutes, then exit 5."),
    ],
)
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@notify_option
def wait_command() -> None:
    """Wait until runs have ended, and report how they ended."""


@command(
    "watch",
    calls="hibali_cli.handlers.run_watch:watch_and_print",
    examples=[
        ("hibali runs watch", "Watch all unfinished runs until they have ended."),
        ("hibali runs watch ID --notify 'notify-send hibali'", "Get a desktop notification when it ends."),
        ("hibali runs watch --json >changes.jsonl", "Save every change as a JSON line."),
    ],
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@notify_option
def watch_command() -> None:
    """Watch runs until they have ended: a table on a terminal, elsewhere a line for each change.

    The exit code is that of `runs wait`. Watching does not count as reporting the end: `hibali run` with the same options still
    resumes a run that was only watched.
    """


runs_command = command_group(
    "runs",
    section=Section.EVERYDAY,
    commands={
        "Following runs": (
            list_command,
            show_command,
            watch_command,
            wait_command,
            logs_command,
            tunnel_command,
        ),
        "Changing runs": (
            cancel_command,
            release_command,
            rerun_command,
            adopt_command,
            clean_command,
        ),
        "Results": (collect_command,),
    },
    help_text="List, follow, collect, cancel and compare runs.",
)
