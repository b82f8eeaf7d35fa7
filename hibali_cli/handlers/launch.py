"""Build the request of `hibali run` and `hibali runs rerun`, prompt for consent, launch it, wait, and collect its outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from hibali.errors import HibaliError, NotFoundError, RefusedError, RunFailedError, UsageError
from hibali.events import Listener, Noted
from hibali.ledger import new_identifier
from hibali.locations import read_target
from hibali.plugins import find, if_offered, not_installed
from hibali.text import as_bytes, counted, without_controls
from hibali_cli.handlers.descriptors import find_pipeline
from hibali_cli.handlers.run_sites import fetch_usage, run_site, update_runs
from hibali_cli.handlers.run_watch import notifying, wait_for_runs
from hibali_cli.handlers.runs import report_ends, report_unfinished, state_text
from hibali_cli.handlers.site_choice import choose_site, chosen_sites, is_choice, texts_of
from hibali_cli.handlers.transfers import VERIFIED
from hibali_cli.options import Common
from hibali_cli.output import Output, flush_results
from hibali_cli.progress import listening
from hibali_cli.run_options import check_collecting, parse_resource_argv, read_run_options
from registry.catalogue import Catalogue
from registry.pipeline import Pipeline
from runs import new_request
from runs.collect import ChosenFiles, Collector, ended_tasks, list_outputs, may_complete, outputs_folder
from runs.containers.base import Container, find_consent_reasons
from runs.inputs import Located, locate_files
from runs.launch import launch, launch_session
from runs.model import Run, State, ignore_run
from runs.new_request import CollectOptions, RequestedJob, RunOptions, require_trust
from runs.rate_limits import wait_for_short_pause
from runs.request import Request, Workload, compute_site, with_job_proxy, workload_key
from runs.resources import DecidedResources, show_value
from runs.reuse import Reuse, copy_collected, find_collected_copy
from runs.site_session import SiteSession
from runs.stage import Synchroniser
from runs.status import find_failure
from runs.store import RunStore
from runs.sweeps.launch import prepare_dry_run
from runs.task_runner import load_task_runner
from runs.typed import recorded_request
from transfers.engine.request import SaveOptions
from transfers.history.journal import Receipt
from transfers.remote.lending import lending

_WIDEST = 60  # columns; a longer value exceeds its column


def run_pipeline(
    common: Common, pipeline: str, invocation: str | None, *, dry_run: bool, **values: Any
) -> int | None:
    """Start a run or a sweep with the options of `hibali run`, or show what it would do; return the exit code."""
    options = read_run_options(values)
    found = find_pipeline(common, Catalogue(), pipeline)
    path = None if invocation is None else Path(invocation)
    check_table_options(options.collect, wait=options.wait)
    return run_workload(common, _read_workload(found, path, options), path, options, dry_run=dry_run)


def run_workload(
    common: Common, workload: Workload, path: Path | None, options: RunOptions, *, dry_run: bool
) -> int | None:
    """Start a run or a sweep whose values were read from the file at `path`; return the exit code."""
    found = workload.pipeline
    if is_choice(options, common.settings()):
        request = _choose_request(common, workload, path, options)
        if options.explain and dry_run:
            return None
    else:
        [site] = set(options.sites)
        request = read_request(common, workload, path, site, options, identify=not dry_run)
    warn_of_shortfalls(common, request)
    if options.sweep is not None and options.sweep.allocations:
        request = load_task_runner().with_pilot(request, options.sweep.allocations)
    if options.collect.dataset is not None:
        # `datalad rerun` could otherwise not repeat the command from the content of the dataset
        _run_records().find_dataset(
            options.collect.dataset, recorded_request([{"asked": request.typed}], found.reference)
        )
    if dry_run:
        _show_dry_run(common, request)
        return None
    require_consent(common, Catalogue(), found, request.compute.container)
    return _launch_and_follow(common, request, options)


def _read_workload(pipeline: Pipeline, path: Path | None, options: RunOptions) -> Workload:
    """Read the values of a run or of the tasks of a sweep."""
    if path is None and options.sweep is None:
        raise UsageError(
            "usage",
            "a run needs a file with the values of its inputs",
            subject="INVOCATION.json",
            hint=if_offered(
                "pipelines.example",
                f"To write an example: hibali pipelines example {pipeline.reference} -o invocation.json",
            ),
        )
    return new_request.read_workload(pipeline, path, options.sweep)


def _choose_request(
    common: Common, workload: Workload, invocation_path: Path | None, options: RunOptions
) -> Request:
    """Choose the best of several sites by the inputs of all tasks, and return the request there."""
    workload = new_request.name_sites(workload, common.settings())
    several = new_request.several_allowed(workload)
    located = locate_files(workload.inputs, common.settings(), None, several=several)
    named = replace(workload, name=options.name, after=options.start.after)
    command_key = workload_key(named, texts_of(located), chosen_sites(options))
    here = replace(options, start=replace(options.start, wait=False, polled=True))

    def make(name: str) -> Request:
        return read_request(common, workload, invocation_path, name, here, located=located)

    return choose_site(common, options, workload.pipeline, command_key, located, make)


def read_request(
    common: Common,
    workload: Workload,
    invocation_path: Path | None,
    site_name: str,
    options: RunOptions,
    *,
    located: Sequence[Located] | None = None,
    identify: bool = True,
) -> Request:
    """Read and check a request; the runs that come first are queried, or with `--wait` waited for."""
    follow = partial(follow_first, common, wait=options.start.wait)
    return new_request.read_request(
        common.settings(),
        workload,
        invocation_path,
        site_name,
        options,
        follow,
        located=located,
        identify=identify,
    )


def _repeat_request(
    common: Common, run_store: RunStore, run: Run, pipeline: Pipeline, numbers: Sequence[int]
) -> Request:
    """Return the request that repeats these tasks of a sweep, or a single run."""
    from runs.sweeps.table import read_rerun_request  # start-up: only for rerun

    recorded = read_rerun_request(run, run_store, pipeline, numbers)
    compute = compute_site(run_site(common, run.site))
    image = str(recorded.typed.get("image", ""))
    workload = recorded.workload
    several = new_request.several_allowed(workload)
    located = locate_files(
        workload.inputs, common.settings(), compute.site, known=recorded.known, several=several
    )
    workload = replace(workload, origin=run.id, name=run.spec.name)
    request = new_request.make_request(workload, located, compute, image, recorded.typed)
    job = RequestedJob(parse_resource_argv(recorded.typed.get("options") or ()))
    request = new_request.with_requested_job(request, job).with_job(proxy=run.submission.proxy)
    warn_of_shortfalls(common, request)
    pilot = run.sweep.pilot if run.sweep is not None else None
    return request if pilot is None else load_task_runner().with_pilot(request, pilot.allocations)


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
    from runs.sweeps.table import tasks_to_rerun  # start-up: only for rerun

    run_store = RunStore()
    run = run_store.load(run_id)
    _require_sweep_for_table(run, collect.table)
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
    return _launch_and_follow(common, request, RunOptions(collect=collect, wait=wait))


def _require_sweep_for_table(run: Run, table: str | None) -> None:
    if table is not None and run.sweep is None:
        raise UsageError("usage", "--table needs a sweep, and this is a single run", subject="--table")


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
        from runs.sweeps.table import check_table  # start-up: most runs have no table

        check_table(Path(collect.table), collect.folder or collect.dataset)


def follow_first(common: Common, runs: list[Run], *, wait: bool) -> None:
    """Query runs that come before another one, or wait for their ends."""
    with listening(common, "waiting for runs that come first") as on_event:
        (wait_for_runs if wait else update_runs)(common, RunStore(), runs, on_event)


def warn_of_shortfalls(common: Common, request: Request) -> None:
    """Warn if the job has less than the pipeline suggests. Raises what `Request.decide_resources` does."""
    for shortfall in request.decide_resources().shortfalls():
        common.output.warn(f"{request.workload.pipeline.reference}: {shortfall}")


def require_consent(common: Common, catalogue: Catalogue, pipeline: Pipeline, container: Container) -> None:
    """Prompt for consent, or raise `RefusedError`, if this pipeline needs it (S10, S11)."""
    try:
        require_trust(catalogue, pipeline, container)
    except RefusedError as problem:
        if problem.code != "not-trusted":
            raise
        question = (
            f"{pipeline.reference} {'; it '.join(find_consent_reasons(pipeline, container))}. Trust it?"
        )
        may_prompt = not common.json and sys.stdin.isatty() and sys.stderr.isatty()
        if not (may_prompt and click.confirm(question, err=True)):
            raise
        catalogue.trust(pipeline.reference)


def _launch_and_follow(common: Common, request: Request, options: RunOptions) -> int:
    """Launch a run, of a sweep as many tasks as the queue limit allows; with `--wait` follow it, and collect its outputs.

    Returns the exit code; raises the failure of the run as an error.
    """
    request = with_job_proxy(request)
    run_store, receipt = RunStore(), None
    title = f"run {request.workload.pipeline.reference} at {request.compute.name}"
    with notifying(common, options.notify) as notify, listening(common, title) as on_event:
        if options.wait:
            wait_for_short_pause(request.compute.name, on_event)
        reuse = Reuse(common.settings(), run_store, on_event) if options.reuse else None
        with launch_session(request, run_store, on_event) as session:
            run = _launch(common, request, session, reuse)
            if options.wait:
                with lending(session.host):
                    run, receipt = _finish(common, run_store, run, options.collect, on_event, notify)
    if receipt is not None:
        _report_collected(common, receipt)
    if options.wait or run.state.ended:
        report_ends(common, run_store, [run], resumable=may_complete(receipt))
    else:
        report_unfinished(common, run)
    return int(receipt.exit) if receipt is not None else 0


def launch_at_site(
    common: Common,
    request: Request,
    run_store: RunStore,
    on_event: Listener,
    reuse: Reuse | None = None,
    on_begin: Callable[[Run], None] | None = None,
) -> Run:
    """Connect to the site, and launch the run there. `on_begin` gets the run as soon as it has an id; by default the id is printed."""
    with launch_session(request, run_store, on_event) as session:
        return _launch(common, request, session, reuse, on_begin)


def _launch(
    common: Common,
    request: Request,
    session: SiteSession,
    reuse: Reuse | None = None,
    on_begin: Callable[[Run], None] | None = None,
) -> Run:
    begun = ignore_run if common.json else on_begin or _id_printer(common)
    return launch(request, session, Synchroniser(), reuse=reuse, on_begin=begun)


def _id_printer(common: Common) -> Callable[[Run], None]:
    def show(run: Run) -> None:
        common.output.line(run.id)
        flush_results()

    return show


def _finish(
    common: Common,
    run_store: RunStore,
    run: Run,
    options: CollectOptions,
    on_event: Listener,
    notify: Callable[[Run], None],
) -> tuple[Run, Receipt | None]:
    """Follow a run to its end, and collect outputs of tasks as they finish; then collect the rest, and write the table.

    The end of a single run is notified before its outputs are collected.
    """
    collector = _collector(common, run_store, run, options, on_event)
    if run.results.from_copy:
        return run, _collect_copy(run_store, run, collector, options, on_event)

    def changed(now: Run) -> None:
        if now.sweep is None:
            notify(now)
        elif collector is not None and options.dataset is None:
            try:
                collector.collect_new(now)
            except HibaliError as problem:
                on_event(Noted(f"not collected yet: {problem.message}"))

    if not run.results.reused:
        [run] = wait_for_runs(common, run_store, [run], on_event, changed=changed)
    receipt, chosen = None, None
    if collector is not None and options.dataset is not None and run.state is State.SUCCEEDED:
        collector = _saving_collector(run_store, run, options.dataset, collector)
    elif options.dataset is not None:
        # one commit with one record, if all succeeded; outputs of failed tasks are saved only on request
        collector = None
    if collector is not None and (run.sweep is not None or run.state is State.SUCCEEDED):
        receipt, chosen = _collect(common, run_store, run, collector, on_event)
    if options.table is not None:
        _make_table(common, run, Path(options.table), collector, chosen)
    if run.sweep is not None:
        run = run_store.load(run.id)  # a single run keeps what only this command knows: that it was reused
        notify(run)
    return run, receipt


def _collector(
    common: Common, run_store: RunStore, run: Run, options: CollectOptions, on_event: Listener
) -> Collector | None:
    """Return what collects the outputs of a run; None if they stay at the site."""
    if options.target is None:
        return None
    target, site = read_target(options.target, common.settings()), run_site(common, run.site)
    return Collector(run_store, site, target, on_event, SaveOptions(save=not options.no_save))


def _collect(
    common: Common, run_store: RunStore, run: Run, collector: Collector, on_event: Listener
) -> tuple[Receipt, ChosenFiles]:
    """Pull the outputs of a single run, or of the tasks that succeeded. Raises what `Collector.collect` does."""
    if run.sweep is not None:
        return collector.collect(run, run.in_state(State.SUCCEEDED))
    fetch_usage(common, run_store, run, on_event)
    return collector.collect(run, ended_tasks(run))


def _collect_copy(
    run_store: RunStore, run: Run, collector: Collector | None, options: CollectOptions, on_event: Listener
) -> Receipt | None:
    """Copy the outputs of an earlier run from the folder into which they were collected before."""
    if collector is None:
        return None
    copy = find_collected_copy(run, run_store)
    if copy is None:
        raise NotFoundError(
            "outputs-gone",
            "the outputs of the earlier run were removed in the meantime",
            subject=run.id,
            hint="Run the same command again with --fresh.",
        )
    saving = SaveOptions(save=not options.no_save)
    return copy_collected(run, run_store, copy, collector.target, saving, on_event)


def _saving_collector(run_store: RunStore, run: Run, dataset: str, collector: Collector) -> Collector:
    """Return a collector that commits the outputs with a record of the command line. Raises `UsageError` for a part of the command's tasks."""
    part = run
    while part.spec.origin and part.sweep is not None:
        whole = run_store.load(part.spec.origin)
        if whole.tasks.keys() != part.tasks.keys():
            raise UsageError(
                "part-of-a-sweep",
                "these are only some tasks of their sweep, but its recorded command would repeat all of them",
                subject=run.id,
                hint=f"Collect them without a record: hibali runs collect {run.id} DIR",
            )
        part = whole
    records = _run_records()
    found = records.find_dataset(dataset, recorded_request(run_store.records(run.id), run.id))
    return collector.saving(records.dataset_saving(found, run))


def _run_records() -> Any:
    """Return what records runs in datasets. Raises `UsageError` without datasets."""
    found = find("hibali.run_records", "datasets")
    if found is None:
        raise not_installed("datasets", "--dataset")
    return found


def collect_run(
    common: Common,
    run_id: str,
    *,
    folder: str | None,
    dataset: str | None,
    table: str | None,
    no_save: bool,
) -> int | None:
    """Pull the outputs of a run or of a sweep's tasks that have ended, and write the table of all tasks; return the exit code.

    Raises the failure of the run as an error.
    """
    if dataset is not None and (folder is not None or no_save):
        raise UsageError("usage", "--dataset cannot be used with DIR or --no-save", subject="--dataset")
    run_store = RunStore()
    run = run_store.load(run_id)
    _require_sweep_for_table(run, table)
    options = CollectOptions(folder if dataset else folder or f"./{run.id}", dataset, no_save, table)
    check_table_options(options, wait=True)
    with listening(common, f"collect {run.id}") as on_event:
        [run] = update_runs(common, run_store, [run], on_event, submit_next=run.sweep is not None)
        collector = _collector(common, run_store, run, options, on_event)
        assert collector is not None  # the options have a folder
        if dataset is not None and run.state is State.SUCCEEDED:
            collector = _saving_collector(run_store, run, dataset, collector)
        if run.sweep is None:
            fetch_usage(common, run_store, run, on_event)
        receipt, chosen = collector.collect(run, ended_tasks(run))
        if table is not None:
            _make_table(common, run, Path(table), collector, chosen)
    _report_collected(common, receipt)
    if run.state.final and not run.results.reported:
        run_store.note(run.id, "reported")
    failure = find_failure(run)
    if isinstance(failure, RunFailedError) and not common.json:
        raise failure
    return int(receipt.exit)


def _make_table(
    common: Common, run: Run, path: Path, collector: Collector | None, chosen: ChosenFiles | None
) -> None:
    """Write the table: a row for each task, with the digests of its outputs, collected or still at the site."""
    # start-up: most runs have no table
    from runs.sweeps.table import OutputFile, hash_files, write_table
    from transfers.stores.open_store import open_store

    if collector is not None and chosen is not None:
        place, digests = collector.target, dict(collector.digests)
        names = {name: name for name in chosen.files}
    else:
        place, digests = outputs_folder(run, run_site(common, run.site)), {}
        with closing(open_store(place)) as store:
            chosen = list_outputs(run, store, run.in_state(State.SUCCEEDED, State.FAILED, State.CANCELLED))
        names = {name: entry.path for name, entry in chosen.files.items()}
    digests |= hash_files(place, [name for name in names.values() if name not in digests])
    root = as_bytes(place.text.rstrip("/"))
    outputs = {
        number: [
            OutputFile(output, root + b"/" + names[name], digests.get(names[name], ""))
            for output, name in files
        ]
        for number, files in chosen.by_task().items()
    }
    write_table(path, run, outputs)
    common.output.info(f"{path}: {counted(len(run.tasks), 'task')}")


def _report_collected(common: Common, receipt: Receipt) -> None:
    """Report the collected outputs: a record for programs, a sentence for people."""
    if common.json:
        record = receipt.to_record()
        fields = {name: record[name] for name in record if name not in {"schema", "kind"}}
        common.output.record("receipt", fields, flush=True)
        return
    moved = f"{receipt.files_moved} transferred"
    verified = VERIFIED[receipt.proof_moved] if receipt.proof_moved else ""
    common.output.info(f"{counted(receipt.files, 'file')} in {receipt.target}, {moved}{verified}")


def _show_dry_run(common: Common, request: Request) -> None:
    """Show the files of a run, of a sweep those of its first job and task, and the command that would submit it."""
    shown = prepare_dry_run(request, new_identifier())
    if request.workload.tasks:
        tasks, arrays = counted(len(request.workload.tasks), "task"), counted(shown.chunks, "job array")
        jobs = "one job after the other" if request.job.allocations else arrays
        common.output.info(f"{tasks} in {jobs}. The first job and the first task:")
    prepared = shown.prepared
    if common.json:
        outputs = [{"id": each.id, "path": each.path, "optional": each.optional} for each in prepared.outputs]
        common.output.record(
            "prepared",
            {
                "pipeline": request.workload.pipeline.reference,
                "site": request.compute.name,
                "resources": prepared.resources.to_fields(),
                "submit": list(prepared.submit),
                "files": dict(shown.files),
                "outputs": outputs,
            },
        )
        return
    _show_resources(common.output, prepared.resources)
    for path, content in shown.files.items():
        common.output.info(f"--- {prepared.folder}/{path}")
        if sys.stdout.isatty():
            for line in content.splitlines():  # a script keeps its backslashes
                common.output.text(f"{without_controls(line)}\n")
        else:
            common.output.raw(content.encode("utf-8", "surrogateescape"))
    common.output.info("Nothing was submitted.")


def _show_resources(output: Output, resources: DecidedResources) -> None:
    """Show each resource that the job requests, and its origin: the command, the site or the pipeline."""
    rows = [
        (str(each["name"]), show_value(each["name"], each["value"]), str(each["from"]))
        for each in resources.to_fields()
    ]
    if not rows:
        output.info("No resources requested; the scheduler's defaults apply")
        return
    widths = [min(_WIDEST, max(len(row[column]) for row in rows)) for column in (0, 1)]
    output.info("Requested resources:")
    for name, value, origin in rows:
        output.info(f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")
