"""Run sweeps: read and check their tasks, submit, follow, and show them as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hibali.errors import HibaliError, RunFailedError, UsageError
from hibali.events import Listener, Noted
from hibali.ledger import new_identifier
from hibali.locations import Location, read_target
from hibali.text import counted
from hibali_cli.handlers.launch import (
    check_dataset,
    choose_request,
    collect_outputs,
    find_pipeline,
    launch_and_follow,
    launch_at_site,
    launch_title,
    read_request,
    report_collected,
    require_consent,
    run_single,
    saving_in,
    show_files,
    warn_of_shortfalls,
)
from hibali_cli.handlers.participants import read_participant_tasks
from hibali_cli.handlers.run_sites import run_site, update_runs
from hibali_cli.handlers.run_watch import following, notifying
from hibali_cli.handlers.runs import report_ends, state_text
from hibali_cli.handlers.site_choice import is_choice
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_cli.run_options import check_collecting, parse_resource_argv, read_run_options
from registry.catalogue import Catalogue
from registry.pipeline import Pipeline
from runs.collect import ChosenFiles, Collector, ended_tasks, list_outputs, may_complete
from runs.failure import find_failure
from runs.inputs import locate_files
from runs.model import Run, State
from runs.new_request import make_request, read_workload, several_allowed, with_requested_job
from runs.options import CollectOptions, RequestedJob, RunOptions
from runs.pilot.setup import with_pilot
from runs.rate_limits import wait_for_short_pause
from runs.records import sweep_of
from runs.request import Request, compute_site, with_job_proxy
from runs.site_access import wait_at_site
from runs.store import RunStore
from runs.sweeps.launch import prepare_dry_run
from runs.sweeps.table import (
    OutputFile,
    check_table,
    hash_files,
    read_rerun_request,
    tasks_to_rerun,
    write_table,
)
from transfers.engine.request import SaveOptions
from transfers.history.journal import Receipt


def run_pipeline(
    common: Common, pipeline: str, invocation: str | None, *, dry_run: bool, **values: Any
) -> int | None:
    """Start a run or a sweep with the options of `hibali run`, or show what it would do; return the exit code."""
    options, catalogue = read_run_options(values), Catalogue()
    found = find_pipeline(common, catalogue, pipeline)
    start = run_single if options.sweep is None else run_sweep
    path = None if invocation is None else Path(invocation)
    return start(common, catalogue, found, path, options, dry_run=dry_run)


def _repeat_request(
    common: Common, run_store: RunStore, run: Run, pipeline: Pipeline, numbers: Sequence[int]
) -> Request:
    """Return the request that repeats these tasks of a sweep, or a single run."""
    recorded = read_rerun_request(run, run_store, pipeline, numbers)
    compute = compute_site(run_site(common, run.site))
    image = str(recorded.typed.get("image", ""))
    workload = recorded.workload
    several = several_allowed(workload)
    located = locate_files(
        workload.inputs, common.settings(), compute.site, known=recorded.known, several=several
    )
    workload = replace(workload, origin=run.id, name=run.spec.name)
    request = make_request(workload, located, compute, image, recorded.typed)
    job = RequestedJob(parse_resource_argv(recorded.typed.get("options") or ()))
    request = with_requested_job(request, job).with_job(proxy=run.submission.proxy)
    warn_of_shortfalls(common, request)
    pilot = run.sweep.pilot if run.sweep is not None else None
    return request if pilot is None else with_pilot(request, pilot.allocations)


def rerun(
    common: Common,
    run_id: str,
    *,
    failed: bool,
    wait: bool,
    folder: str | None,
    table: str | None,
    no_save: bool,
) -> int:
    """Rerun all tasks of a run, or only the failed ones; return the exit code."""
    collect = CollectOptions(folder, None, no_save, table)
    check_collecting(collect, wait=wait)
    check_table_options(collect, wait=wait)
    run_store = RunStore()
    run = run_store.load(run_id)
    if collect.table is not None and run.sweep is None:
        raise UsageError("usage", "--table needs a sweep, and this is a single run", subject="--table")
    with listening(common, f"run {run.id}") as on_event:
        [run] = update_runs(common, run_store, [run], on_event)
    numbers = tasks_to_rerun(run, failed=failed)
    if not numbers:
        if common.json:
            common.output.record("run", run.to_record())
        common.output.info(f"{run.id} {state_text(run)}: no task failed, so none is rerun.")
        return 0
    catalogue = Catalogue()
    request = _repeat_request(common, run_store, run, catalogue.find(run.spec.pipeline), numbers)
    require_consent(common, catalogue, request.workload.pipeline, request.compute.container)
    options = RunOptions(collect=collect, wait=wait)
    follow = _launch_and_follow if request.workload.tasks else launch_and_follow
    return follow(common, request, options)


def run_sweep(
    common: Common,
    catalogue: Catalogue,
    pipeline: Pipeline,
    invocation_path: Path | None,
    options: RunOptions,
    *,
    dry_run: bool,
) -> int | None:
    """Run a pipeline once for each task of a sweep; return the exit code."""
    assert options.sweep is not None
    check_table_options(options.collect, wait=options.wait)
    if options.sweep.participants is None:
        workload = read_workload(pipeline, invocation_path, options.sweep)
    else:
        chosen = read_participant_tasks(common, pipeline, invocation_path, options.sweep.participants)
        if chosen is None:
            common.output.info("None is missing, so nothing is run.")
            return None
        workload = chosen
    if is_choice(options, common.settings()):
        request = choose_request(common, workload, invocation_path, options)
        if options.explain and dry_run:
            return None
    else:
        [site] = set(options.sites)
        request = read_request(common, workload, invocation_path, site, options, identify=not dry_run)
    warn_of_shortfalls(common, request)
    if options.sweep.allocations:
        request = with_pilot(request, options.sweep.allocations)
    check_dataset(request, options.collect.dataset)
    if dry_run:
        _show_dry_run(common, request)
        return None
    require_consent(common, catalogue, pipeline, request.compute.container)
    return _launch_and_follow(common, request, options)


def check_table_options(collect: CollectOptions, *, wait: bool) -> None:
    """Raise `UsageError` if the table cannot be written."""
    if collect.table is not None and not wait:
        raise UsageError(
            "usage",
            "the table can be written only after the tasks have ended",
            subject="--table",
            hint="Add --wait; or, when they have ended: hibali runs collect ID DIR --table FILE",
        )
    if collect.table is not None:
        check_table(Path(collect.table), collect.folder or collect.dataset)


def _launch_and_follow(common: Common, request: Request, options: RunOptions) -> int:
    """Launch a sweep, as many tasks as the queue limit allows; with `--wait` follow all. Raises the failure of the sweep as an error."""
    request = with_job_proxy(request)
    run_store = RunStore()
    receipt = None
    with notifying(common, options.notify) as notify, listening(common, launch_title(request)) as on_event:
        if options.wait:
            wait_for_short_pause(request.compute.name, on_event)
        run = launch_at_site(common, request, run_store, on_event)
        if options.wait:
            run, receipt = _finish(common, run_store, run, request, options.collect, on_event)
            notify(run)
    if receipt is not None:
        report_collected(common, receipt)
    if options.wait or run.state.ended:
        report_ends(common, run_store, [run], resumable=may_complete(receipt))
    elif common.json:
        common.output.record("run", run.to_record())
    else:
        _report_submitted(common, run)
    return int(receipt.exit) if receipt is not None else 0


def _report_submitted(common: Common, run: Run) -> None:
    common.output.info(f"{state_text(run)} at {run.site}: hibali runs wait {run.id}")
    waiting = sum(len(chunk.tasks) for chunk in sweep_of(run).unsubmitted())
    if waiting:
        common.output.info(
            f"{counted(waiting, 'task')} not submitted yet, because the queue is full. To submit: hibali runs wait {run.id}"
        )


def _finish(
    common: Common,
    run_store: RunStore,
    run: Run,
    request: Request,
    collect: CollectOptions,
    on_event: Listener,
) -> tuple[Run, Receipt | None]:
    """Follow a sweep to its end and collect outputs as tasks finish; then collect the rest, and write the table."""
    collector = None
    folder = collect.target
    if folder is not None:
        target = read_target(folder, common.settings())
        collector = Collector(
            run_store, request.compute.site, target, on_event, SaveOptions(save=not collect.no_save)
        )

    def changed(now: Run) -> None:
        common.output.detail(f"{now.id} {state_text(now)}")
        shown.changed(now)
        try:
            if collector is not None and collect.dataset is None:
                collector.collect_new(now)
        except HibaliError as problem:
            on_event(Noted(f"not collected yet: {problem.message}"))

    with following(common, run_store, [run], on_event) as shown:
        run = wait_at_site(request.compute.site, run_store, run, shown.on_event, changed=changed)
    if collector is not None and collect.dataset is not None:
        # one commit with one record, if all succeeded; outputs of failed tasks are saved only on request
        collector = (
            _saving_collector(run_store, run, collect.dataset, collector)
            if run.state is State.SUCCEEDED
            else None
        )
    numbers = run.in_state(State.SUCCEEDED)
    receipt, chosen = collector.collect(run, numbers) if collector is not None else (None, None)
    if collect.table is not None:
        make_table(common, run, Path(collect.table), collector, chosen)
    return run_store.load(run.id), receipt


def _saving_collector(run_store: RunStore, run: Run, dataset: str, collector: Collector) -> Collector:
    """Return a collector that commits the outputs with a record of the command line. Raises `UsageError` for a part of the command's tasks."""
    part = run
    while part.spec.origin:
        whole = run_store.load(part.spec.origin)
        if whole.tasks.keys() != part.tasks.keys():
            raise UsageError(
                "part-of-a-sweep",
                "these are only some tasks of their sweep, but its recorded command would repeat all of them",
                subject=run.id,
                hint=f"Collect them without a record: hibali runs collect {run.id} DIR",
            )
        part = whole
    return collector.saving(saving_in(run_store, run, dataset))


def collect_sweep(common: Common, run_store: RunStore, run: Run, collect: CollectOptions) -> int:
    """Pull the outputs of the tasks that have ended, and write the table of all tasks; return the exit code. Raises the failure of the sweep as an error."""
    check_table_options(collect, wait=True)
    with listening(common, f"collect {run.id}") as on_event:
        [run] = update_runs(common, run_store, [run], on_event, submit_next=True)
        target = read_target(collect.target or f"./{run.id}", common.settings())
        site = run_site(common, run.site)
        collector = Collector(run_store, site, target, on_event, SaveOptions(save=not collect.no_save))
        if collect.dataset is not None and run.state is State.SUCCEEDED:
            collector = _saving_collector(run_store, run, collect.dataset, collector)
        receipt, chosen = collector.collect(run, ended_tasks(run))
        if collect.table is not None:
            make_table(common, run, Path(collect.table), collector, chosen)
    report_collected(common, receipt)
    if run.state.final and not run.results.reported:
        run_store.note(run.id, "reported")
    failure = find_failure(run)
    if isinstance(failure, RunFailedError) and not common.json:
        raise failure
    return int(receipt.exit)


def make_table(
    common: Common, run: Run, path: Path, collector: Collector | None, chosen: ChosenFiles | None
) -> None:
    """Write the table: a row for each task, with the digests of its outputs, collected or still at the site."""
    outputs: dict[int, list[OutputFile]] = {}
    if collector is not None and chosen is not None:
        digests = dict(collector.digests)
        rest = [name for name in chosen.files if name not in digests]
        digests |= hash_files(collector.target, rest)
        root = collector.target.text.rstrip("/")
        names = {name: name for name in chosen.files}
    else:
        folder = f"{_text(run.folder)}/tasks"
        source = Location(run_site(common, run.site), folder, f"{run.site}:{folder}")
        ended = run.in_state(State.SUCCEEDED, State.FAILED, State.CANCELLED)
        chosen = list_outputs(run, source, ended)
        names = {name: entry.path for name, entry in chosen.files.items()}
        digests = hash_files(source, list(names.values()))
        root = source.text
    for number, files in chosen.by_task().items():
        outputs[number] = [
            OutputFile(output, _bytes(root) + b"/" + names[name], digests.get(names[name], ""))
            for output, name in files
        ]
    write_table(path, run, outputs)
    common.output.info(f"{path}: {counted(len(run.tasks), 'task')}")


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _show_dry_run(common: Common, request: Request) -> None:
    """Show the first job array and the first task; the others differ by their numbers and values."""
    shown = prepare_dry_run(request, new_identifier())
    count = len(request.workload.tasks)
    tasks, arrays = counted(count, "task"), counted(shown.chunks, "job array")
    jobs = "one job after the other" if request.job.allocations else arrays
    common.output.info(f"{tasks} in {jobs}. The first job and the first task:")
    show_files(common, request, shown)


def collect_run(
    common: Common,
    run_id: str,
    *,
    folder: str | None,
    dataset: str | None,
    table: str | None,
    no_save: bool,
) -> int | None:
    """Pull the outputs of a run or of a sweep's tasks; return the exit code."""
    if dataset is not None and (folder is not None or no_save):
        raise UsageError("usage", "--dataset cannot be used with DIR or --no-save", subject="--dataset")
    run_store = RunStore()
    run = run_store.load(run_id)
    if run.sweep is not None:
        return collect_sweep(common, run_store, run, CollectOptions(folder, dataset, no_save, table))
    if table is not None:
        raise UsageError("usage", "--table needs a sweep, and this is a single run", subject="--table")
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
