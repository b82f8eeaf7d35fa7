"""`hibali runs`: list, follow, collect, cancel and compare runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hibali_cli.command import command, command_group
from hibali_cli.options import OUTPUT_FILE, OUTPUT_PLACE, Common, duration_of
from hibali_cli.run_options import CollectOptions, check_collecting, notify_option

if TYPE_CHECKING:
    from hibali_cli.handlers.run_sites import LogLines
    from runs.logs import Stream
    from runs.model import Run
    from runs.store import RunStore


@command(
    "adopt",
    examples=[
        ("hibali runs adopt juwels", "See which runs at juwels this machine does not know."),
        ("hibali runs adopt juwels --yes", "Adopt all of them that have a job."),
        ("hibali runs adopt juwels 20260102-030405-0a1b2c3d", "Adopt this one."),
    ],
)
@click.argument("named", metavar="[SITE|ID]...", nargs=-1)
@click.option("-y", "--yes", is_flag=True, help="Adopt all runs that can be adopted.")
def adopt_command(common: Common, named: tuple[str, ...], *, yes: bool) -> int | None:
    """Find runs that another ledger of this account started, and adopt them.

    After a lost state folder, or from another machine, a site may hold runs that this ledger does not know. They are shown, and with
    --yes, or by their ids, followed from here as if they had been begun here. A run without a job is left to the ledger that began
    it, and so is one that is being submitted now. Without SITE, every site where runs can be is looked at.
    """
    from hibali_cli.handlers.run_folders import adopt_and_print

    return adopt_and_print(common, named, everything=yes)


@command("cancel", examples=[("hibali runs cancel 20260102-030405-0a1b2c3d", "Cancel a run.")])
@click.argument("run_id", metavar="ID")
def cancel_command(common: Common, run_id: str) -> int | None:
    """Cancel a run; one that has ended stays as it is.

    A run that is not submitted yet is never submitted. If the command is killed, run it again to resume.
    """
    from hibali_cli.handlers.run_sites import opener, run_site
    from hibali_cli.handlers.runs import show_run, state_text
    from hibali_cli.progress import listening
    from runs.cancel import cancel_run
    from runs.schedulers.base import load_scheduler
    from runs.store import RunStore

    run_store = RunStore()
    run = run_store.load(run_id)
    if not run.state.final:
        with listening(common, f"cancel {run.id}") as on_event:
            open_host = opener(run_site(common, run.site), on_event)
            run = cancel_run(open_host, load_scheduler(run.placement.scheduler), run_store, run, on_event)
    if common.json:
        show_run(common, run)
    else:
        common.output.info(f"{run.id} {state_text(run)}")
    return None


@command(
    "clean",
    resumes=True,
    examples=[
        ("hibali runs clean --dry-run", "See which folders of runs would be removed at their sites."),
        (
            "hibali runs clean --site juwels --older-than 30d",
            "Remove those at juwels that ended a month ago.",
        ),
        ("hibali runs clean ID --all-ended --yes", "Remove one whose outputs nobody wants."),
    ],
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--site", "site_name", metavar="SITE", help="Only runs at SITE.")
@click.option("--older-than", callback=duration_of, metavar="DURATION", help="Keep runs that ended later.")
@click.option("--all-ended", is_flag=True, help="Also those whose outputs were not collected.")
@click.option("-y", "--yes", is_flag=True, help="With --all-ended, do not ask.")
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be removed.")
def clean_command(
    common: Common,
    run_ids: tuple[str, ...],
    *,
    site_name: str | None,
    older_than: float | None,
    all_ended: bool,
    yes: bool,
    dry_run: bool,
) -> int | None:
    """Remove the folders of runs at their sites, once they are over and collected.

    The cache stays, and so does what the ledger knows of the runs. Unfinished and LOST runs are never
    touched. If the command is killed, run it again to resume.
    """
    from hibali_cli.handlers.run_folders import CleanOptions, clean_and_print
    from runs.clean import CleanRequest

    wanted = CleanRequest(all_ended=all_ended, older_than=older_than or 0.0)
    return clean_and_print(common, CleanOptions(run_ids, site_name, wanted, yes=yes, dry=dry_run))


@command(
    "collect",
    resumes=True,
    examples=[
        ("hibali runs collect 20260102-030405-0a1b2c3d results", "Pull the outputs into results/, verified."),
        (
            "hibali runs collect 20260102-030405-0a1b2c3d results --table results/all.csv",
            "Pull the outputs of a sweep's tasks into results/1/, results/2/ ..., and list them.",
        ),
        (
            "hibali runs collect 20260102-030405-0a1b2c3d --dataset study/derived",
            "The same into a dataset, with a record of the run.",
        ),
    ],
)
@click.argument("run_id", metavar="ID")
@click.argument("folder", metavar="[DIR]", type=OUTPUT_PLACE, required=False)
@click.option(
    "--dataset",
    metavar="DIR",
    type=OUTPUT_FILE,
    help="Collect into DIR in a DataLad dataset, and save with a record that `datalad rerun` repeats.",
)
@click.option(
    "--table",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="A .csv, .jsonl or .parquet file of a sweep's tasks and outputs.",
)
@click.option("--no-save", is_flag=True, help="Do not commit outputs that go into a dataset.")
def collect_command(
    common: Common,
    run_id: str,
    *,
    folder: str | None,
    dataset: str | None,
    table: str | None,
    no_save: bool,
) -> int | None:
    """Pull every declared output of a run into DIR (default: ./ID), verified.

    A run that failed is exit 7, whatever its tool left, or exit 9 when the tool ended with 0 and left a required output missing; exit 6 names an
    output of a successful run that has vanished or is no regular file. Of a sweep all tasks that have
    ended are collected, each into a folder with its number.
    """
    from hibali.errors import RunFailedError, UsageError
    from hibali_cli.handlers.launch import collect_outputs, report_collected, saving_in
    from hibali_cli.handlers.run_sites import update_runs
    from hibali_cli.handlers.runs import find_failure
    from hibali_cli.progress import listening
    from runs.model import State
    from runs.store import RunStore
    from transfers.request import SaveOptions

    if dataset is not None and (folder is not None or no_save):
        raise UsageError("usage", "it says where outputs go, and that they are saved", subject="--dataset")
    run_store = RunStore()
    run = run_store.load(run_id)
    if run.sweep is not None:
        from hibali_cli.handlers.sweeps import collect_sweep

        return collect_sweep(common, run_store, run, CollectOptions(folder, dataset, no_save, table))
    if table is not None:
        raise UsageError("usage", "it is for a sweep, and this run is none", subject="--table")
    with listening(common, f"collect {run.id}") as on_event:
        [run] = update_runs(common, run_store, [run], on_event)
        saving = SaveOptions(save=not no_save)
        if dataset is not None and run.state is State.SUCCEEDED:
            saving = saving_in(run_store, run, dataset)
        receipt = collect_outputs(
            common, run_store, run, dataset or folder or f"./{run.id}", on_event, saving
        )
    report_collected(common, receipt)
    if not run.results.reported:
        run_store.note(run.id, "reported")
    failure = find_failure(run)
    if isinstance(failure, RunFailedError) and not common.json:
        raise failure
    return int(receipt.exit)


@command(
    "compare",
    examples=[
        ("hibali runs compare A_ID B_ID", "Show how two runs and their outputs differ."),
        ("hibali runs compare A_ID B_ID --by 'cmp -n 100'", "Let a command say what is alike enough."),
    ],
)
@click.argument("a", metavar="A_ID")
@click.argument("b", metavar="B_ID")
@click.option(
    "--by",
    metavar="COMMAND",
    help="For outputs that differ: COMMAND A B exits with 0 if they are similar enough.",
)
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    type=OUTPUT_FILE,
    help="With --by, copy missing outputs into DIR and keep them.",
)
def compare_command(common: Common, a: str, b: str, *, by: str | None, folder: str | None) -> int | None:
    """Compare the outputs of two runs by digest: exit 0 if all are the same, 6 if not.

    Nothing is transferred: outputs that were not collected are hashed at their site. Only for --by, differing outputs are copied here.
    Tasks of sweeps are compared if they have the same answers; a single run is one task.
    """
    from hibali_cli.handlers.run_compare import compare_runs, print_comparison, read_command
    from hibali_cli.handlers.run_sites import update_runs
    from hibali_cli.progress import listening
    from runs.store import RunStore

    words = read_command(by, folder)
    run_store = RunStore()
    runs = [run_store.load(a), run_store.load(b)]
    with listening(common, f"compare {a} {b}") as on_event:
        runs = update_runs(common, run_store, runs, on_event)
        found = compare_runs(common, run_store, runs, words, folder, on_event)
    return print_comparison(common, found, with_tolerance=bool(words))


@command(
    "export",
    examples=[
        ("hibali runs export 20260102-030405-0a1b2c3d --ro-crate run.zip", "Describe a run in one file."),
        ("hibali runs export ID ID --ro-crate crate", "Several runs, as a folder."),
    ],
)
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@click.option(
    "--ro-crate",
    "crate",
    required=True,
    metavar="DIR|FILE.zip",
    type=OUTPUT_FILE,
    help="Write an RO-Crate there.",
)
def export_command(common: Common, run_ids: tuple[str, ...], *, crate: str) -> int | None:
    """Describe runs that have ended as an RO-Crate: pipeline, answers, digests of inputs and outputs, times.

    No data goes into it; `hibali bundle create` makes a file that a peer can repeat. What was not collected is hashed at its site.
    Of a sweep each task is an action with its own values, times and outputs.
    """
    import os
    from pathlib import Path

    from hibali.files import account_names
    from hibali.text import path_fields
    from hibali_cli.handlers.run_sites import run_site, update_runs
    from hibali_cli.progress import listening
    from registry.catalogue import Catalogue
    from runs.bundles.create import check_pipeline, outputs_of
    from runs.bundles.export import Exported, crate_texts, write_crate
    from runs.store import RunStore
    from runs.sweeps.table import read_rerun_request

    run_store, catalogue = RunStore(), Catalogue()
    target = Path(crate)
    with listening(common, "export") as on_event:
        runs = update_runs(
            common, run_store, [run_store.load(run_id) for run_id in dict.fromkeys(run_ids)], on_event
        )
        found = []
        for run in runs:
            left = outputs_of(run, run_store, lambda run=run: run_site(common, run.site))  # type: ignore[misc]
            pipeline = catalogue.find(run.spec.pipeline)
            check_pipeline(run, pipeline)
            tasks = (
                read_rerun_request(run, run_store, pipeline, tuple(run.sweep.tasks)).tasks
                if run.sweep
                else ()
            )
            found.append(Exported(run, pipeline, left, tasks))
        texts = crate_texts(found, account_names()[0])
        write_crate(texts, target)
    for each in found:
        for problem in each.outputs.problems:
            common.output.warn(f"{each.run.id}: {os.fsdecode(problem.path)}: {problem.message}")
    if not common.json:
        common.output.line(os.fsencode(target))
        return None
    fields = {
        **path_fields(os.fsencode(target)),
        "format": "ro-crate",
        "runs": [run.id for run in runs],
        "bytes": sum(len(content) for content in texts.values()),
    }
    common.output.record("exported", fields)
    return None


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
    examples=[
        ("hibali runs list", "Show every run as it was last observed."),
        ("hibali runs list --update", "Ask each site once first."),
        ("hibali runs list --state FAILED,LOST", "Show those that need attention."),
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
def list_command(
    common: Common, *, update: bool, states: tuple[str, ...], site_name: str | None
) -> int | None:
    """List runs, oldest first, as they were last observed."""
    from hibali_cli.handlers.run_sites import update_runs
    from hibali_cli.handlers.runs import tasks_text
    from hibali_cli.progress import listening
    from runs.store import RunStore

    run_store = RunStore()
    runs = [run for run in run_store.all() if site_name in {None, run.site}]
    if update:
        with listening(common, "runs") as on_event:
            runs = update_runs(common, run_store, runs, on_event)
    runs = [run for run in runs if not states or run.state in states]
    if common.json:
        for run in runs:
            common.output.record("run", run.to_record())
        common.output.record("end", {"count": len(runs), "exit": 0})
        return None
    rows = [
        (
            run.id,
            run.state,
            tasks_text(run.sweep) if run.sweep is not None else None,
            run.spec.pipeline,
            run.site,
            run.spec.name or None,
            len(run.results.collected),
        )
        for run in runs
    ]
    common.output.table(["run", "state", "tasks", "pipeline", "site", "name", "collected"], rows)
    return None


@command(
    "logs",
    examples=[
        ("hibali runs logs 20260102-030405-0a1b2c3d", "See what the tool printed."),
        ("hibali runs logs ID --task 17", "See what one task of a sweep printed."),
        ("hibali runs logs ID --stderr >errors.txt", "Keep what it printed to stderr, byte for byte."),
        ("hibali runs logs -f ID", "Follow both streams until the run has ended."),
    ],
)
@click.argument("run_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the run has ended.")
@click.option("--stderr", "stream", flag_value="stderr", help="The standard error of the tool.")
@click.option("--stdout", "stream", flag_value="stdout", help="The standard output of the tool.")
@click.option("--scheduler", "stream", flag_value="scheduler.log", help="The output of the job itself.")
@click.option("--task", type=int, metavar="N", help="Of a sweep, the task of this number.")
def logs_command(
    common: Common, run_id: str, *, follow: bool, stream: Stream | None, task: int | None
) -> int | None:
    """Print what the tool wrote to standard output; on a terminal control characters are escaped.

    With --follow both streams are shown, each where it belongs, unless one is named. A run that waits is waited for.
    """
    from hibali_cli.handlers.run_sites import LogLines
    from runs.records import choose_task
    from runs.store import RunStore

    run_store = RunStore()
    run = choose_task(run_store.load(run_id), task, log_of_job=stream == "scheduler.log")
    lines = LogLines(common, run.id, apart=follow and stream is None)
    if not follow:
        _print(common, run, stream or "stdout", lines)
        return None
    try:
        ended = _follow(
            common, run_store, run, task, ("stdout", "stderr") if stream is None else (stream,), lines
        )
    finally:
        lines.end()
    if common.json:
        common.output.record("run", ended.to_record())
    else:
        common.output.info(f"{ended.id} {ended.state}")
    return None


def _print(common: Common, run: Run, stream: Stream, lines: LogLines) -> None:
    from hibali_cli.handlers.run_sites import opener, run_site
    from hibali_cli.progress import listening
    from runs.logs import read_log

    with listening(common, f"logs {run.id}") as on_event:
        host = opener(run_site(common, run.site), on_event)()
        try:
            for piece in read_log(host, run, stream):
                lines.show(stream, piece)
            lines.end()
        finally:
            host.close()


def _follow(
    common: Common,
    run_store: RunStore,
    run: Run,
    task: int | None,
    streams: tuple[Stream, ...],
    lines: LogLines,
) -> Run:
    from hibali_cli.handlers.run_sites import opener, run_site
    from hibali_cli.progress import listening
    from runs.logs import follow_logs
    from runs.schedulers.base import load_scheduler

    site = run_site(common, run.site)
    with listening(common, f"logs {run.id}") as on_event:
        return follow_logs(
            opener(site, on_event),
            load_scheduler(run.placement.scheduler),
            run_store,
            run,
            streams,
            lines.show,
            limits=site.limits,
            task=task,
            on_event=on_event,
        )


@command(
    "release",
    examples=[("hibali runs release 20260102-030405-0a1b2c3d", "Let a run go that was begun with --hold.")],
)
@click.argument("run_id", metavar="ID")
def release_command(common: Common, run_id: str) -> int | None:
    """Release a run that was started with `run --hold`.

    Running it again changes nothing. A run that has ended is exit 8.
    """
    from hibali_cli.handlers.run_sites import opener, run_site
    from hibali_cli.handlers.runs import show_run
    from hibali_cli.progress import listening
    from runs.cancel import check_releasable, release_run
    from runs.schedulers.base import load_scheduler
    from runs.store import RunStore

    run_store = RunStore()
    run = run_store.load(run_id)
    check_releasable(run)
    with listening(common, f"release {run.id}") as on_event:
        host = opener(run_site(common, run.site), on_event)()
        try:
            run = release_run(host, load_scheduler(run.placement.scheduler), run_store, run)
        finally:
            host.close()
    if common.json:
        show_run(common, run)
    else:
        common.output.info(f"{run.id} {run.state}")
    return None


@command(
    "report",
    examples=[
        ("hibali runs report -o runs.html", "Put all runs on one page."),
        ("hibali runs report 20260102-030405-0a1b2c3d -o run.html", "Only this one."),
    ],
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option(
    "-o",
    "--output",
    "output",
    required=True,
    metavar="FILE.html",
    type=OUTPUT_FILE,
    help="Write FILE.html, completely or not at all.",
)
@click.option("--update", is_flag=True, help="Query each site with unfinished runs once.")
def report_command(common: Common, run_ids: tuple[str, ...], *, output: str, update: bool) -> int | None:
    """Write a report of runs as they were last observed: a timeline, resource usage, inputs and outputs.

    The page is self-contained and has no scripts: it can be opened, printed and sent as it is.
    """
    import os
    import time
    from pathlib import Path

    from hibali.files import WholeFile
    from hibali.text import path_fields
    from hibali_cli.handlers.run_sites import update_runs
    from hibali_cli.progress import listening
    from runs.reports.run_page import render, report_run
    from runs.store import RunStore

    run_store = RunStore()
    runs = [run_store.load(run_id) for run_id in dict.fromkeys(run_ids)] if run_ids else run_store.all()
    if update:
        with listening(common, "report") as on_event:
            runs = update_runs(common, run_store, runs, on_event)
    page = render([report_run(run, run_store) for run in sorted(runs, key=lambda run: run.id)], time.time())
    with WholeFile(Path(output)) as file:
        file.write(page)
        file.commit()
    if common.json:
        fields = {"format": "report", "runs": [run.id for run in runs], "bytes": len(page)}
        common.output.record("exported", {**path_fields(os.fsencode(output)), **fields})
    else:
        common.output.line(os.fsencode(output))
    return None


@command(
    "rerun",
    resumes=True,
    examples=[
        ("hibali runs rerun 20260102-030405-0a1b2c3d", "Run it once more, with the same answers."),
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
    help="Only tasks that failed, were cancelled or are LOST; nothing if all succeeded.",
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
def rerun_command(
    common: Common,
    run_id: str,
    *,
    failed: bool,
    wait: bool,
    folder: str | None,
    table: str | None,
    no_save: bool,
) -> int | None:
    """Repeat a run as a new run; the tasks of a sweep keep their numbers.

    The same command again resumes the run that it started, until hibali has reported how that run ended; then it starts a new one.
    """
    from hibali_cli.handlers.sweeps import rerun

    collect = CollectOptions(folder, None, no_save, table)
    check_collecting(collect, wait=wait)
    return rerun(common, run_id, collect, failed=failed, wait=wait)


@command("show", examples=[("hibali runs show 20260102-030405-0a1b2c3d", "Show the state of a run.")])
@click.argument("run_id", metavar="ID")
def show_command(common: Common, run_id: str) -> int | None:
    """Show a run, after querying its site once if it has not ended."""
    from hibali_cli.handlers.run_sites import update_runs
    from hibali_cli.handlers.runs import show_run
    from hibali_cli.progress import listening
    from runs.store import RunStore

    run_store = RunStore()
    run = run_store.load(run_id)
    with listening(common, f"run {run.id}") as on_event:
        [run] = update_runs(common, run_store, [run], on_event, submit_next=True)
    show_run(common, run)
    return None


@command(
    "wait",
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
def wait_command(common: Common, run_ids: tuple[str, ...], *, notify: str | None) -> int | None:
    """Wait until runs have ended, and report how they ended."""
    from hibali_cli.handlers.run_sites import notifying, wait_for_runs
    from hibali_cli.handlers.runs import report_ends
    from hibali_cli.progress import listening
    from runs.store import RunStore

    run_store = RunStore()
    runs = [run_store.load(run_id) for run_id in dict.fromkeys(run_ids)]
    with listening(common, "waiting") as on_event, notifying(common, notify) as changed:
        runs = wait_for_runs(common, run_store, runs, on_event, changed=changed)
    report_ends(common, run_store, runs)
    return None


@command(
    "watch",
    examples=[
        ("hibali runs watch", "Watch all runs that are under way, until they are over."),
        ("hibali runs watch ID --notify 'notify-send hibali'", "Be told of the end."),
        ("hibali runs watch --json >changes.jsonl", "Keep every change as a JSON line."),
    ],
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@notify_option
def watch_command(common: Common, run_ids: tuple[str, ...], *, notify: str | None) -> int | None:
    """Watch runs until they have ended: a table on a terminal, elsewhere a line for each change.

    It ends as `runs wait` does, but the end counts as not reported: the same `run` command still resumes a run that was only watched.
    """
    from hibali_cli.handlers.run_sites import notifying
    from hibali_cli.handlers.run_watch import watch_runs
    from hibali_cli.handlers.runs import raise_failure
    from runs.store import RunStore

    run_store = RunStore()
    if run_ids:
        runs = [run_store.load(run_id) for run_id in dict.fromkeys(run_ids)]
    else:
        runs = [run for run in run_store.all() if run.job and not run.state.ended]
    ended_runs: list[Run] = []
    with notifying(common, notify) as notice:

        def on_change(run: Run) -> None:
            ended_runs.append(run)
            notice(run)

        runs = watch_runs(common, run_store, runs, on_change)
    if not runs:
        common.output.info("No run is under way.")
    raise_failure(runs)
    if common.json:
        common.output.record("end", {"count": len(ended_runs), "exit": 0})
    return None


runs_command = command_group(
    "runs",
    commands=(
        adopt_command,
        cancel_command,
        clean_command,
        collect_command,
        compare_command,
        export_command,
        list_command,
        logs_command,
        release_command,
        report_command,
        rerun_command,
        show_command,
        wait_command,
        watch_command,
    ),
    help_text="Look at runs, wait for them, cancel them and collect their outputs.",
)
