"""Build the request of `hibali run`, prompt for consent, launch it, wait, and collect its outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from hibali.errors import NotFoundError, RefusedError, UsageError
from hibali.events import Listener
from hibali.ledger import new_identifier
from hibali.locations import read_target
from hibali.text import counted
from hibali_cli.handlers.run_sites import fetch_usage, run_site, update_runs
from hibali_cli.handlers.run_watch import notifying, wait_for_runs
from hibali_cli.handlers.runs import report_ends, report_unfinished
from hibali_cli.handlers.site_choice import choose_site, chosen_sites, is_choice, texts_of
from hibali_cli.options import Common
from hibali_cli.output import Output, flush_results
from hibali_cli.progress import listening
from registry.catalogue import Catalogue
from registry.pipeline import Pipeline
from runs import new_request
from runs.collect import Collector, ended_tasks, may_complete
from runs.containers.base import Container, find_consent_reasons
from runs.dataset import dataset_saving, find_dataset, recorded_request
from runs.inputs import (
    Located,
    copy_collected,
    find_collected_copy,
    locate_files,
)
from runs.launch import launch, launch_session
from runs.model import Run, State, ignore_run
from runs.new_request import require_trust
from runs.options import CollectOptions, RunOptions
from runs.rate_limits import wait_for_short_pause
from runs.request import Request, Workload, with_job_proxy, workload_key
from runs.resources import DecidedResources, show_value
from runs.reuse import Reuse
from runs.stage import Synchroniser
from runs.store import RunStore
from runs.sweeps.launch import DryRun, prepare_dry_run
from transfers.engine.request import SaveOptions
from transfers.history.journal import Receipt

_WIDEST = 60  # columns; a longer value exceeds its column


def find_pipeline(common: Common, catalogue: Catalogue, name: str) -> Pipeline:
    """Return a pipeline of the catalogue; warn if it is deprecated. Raises `NotFoundError`."""
    found = catalogue.find(name)
    deprecation = catalogue.deprecation(found)
    if deprecation is not None:
        common.output.warn(f"{found.reference}: {deprecation}")
    return found


def run_single(
    common: Common,
    catalogue: Catalogue,
    pipeline: Pipeline,
    invocation_path: Path | None,
    options: RunOptions,
    *,
    dry_run: bool,
) -> int | None:
    """Run a pipeline once with the input values in a file; return the exit code."""
    if invocation_path is None:
        raise UsageError(
            "usage",
            "a run needs a file with the values of its inputs",
            subject="INVOCATION.json",
            hint=f"To write an example: hibali pipelines example {pipeline.reference} -o invocation.json",
        )
    workload = new_request.read_workload(pipeline, invocation_path, None)
    if is_choice(options, common.settings()):
        request = choose_request(common, workload, invocation_path, options)
        if options.explain and dry_run:
            return None
    else:
        request = read_request(
            common, workload, invocation_path, options.sites[0], options, identify=not dry_run
        )
    warn_of_shortfalls(common, request)
    check_dataset(request, options.collect.dataset)
    if dry_run:
        _show_dry_run(common, request)
        return None
    require_consent(common, catalogue, request.workload.pipeline, request.compute.container)
    return launch_and_follow(common, request, options)


def choose_request(
    common: Common, workload: Workload, invocation_path: Path | None, options: RunOptions
) -> Request:
    """Choose the best of several sites by the inputs of all tasks, and return the request there."""
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


def follow_first(common: Common, runs: list[Run], *, wait: bool) -> None:
    """Query runs that come before another one, or wait for their ends."""
    with listening(common, "waiting for runs that come first") as on_event:
        (wait_for_runs if wait else update_runs)(common, RunStore(), runs, on_event)


def warn_of_shortfalls(common: Common, request: Request) -> None:
    """Warn if the job has less than the pipeline suggests. Raises what `Request.decide_resources` does."""
    for shortfall in request.decide_resources().shortfalls():
        common.output.warn(f"{request.workload.pipeline.reference}: {shortfall}")


def check_dataset(request: Request, dataset: str | None) -> None:
    """Raise `UsageError` if `datalad rerun` could not repeat the command from the content of the dataset."""
    if dataset is not None:
        find_dataset(
            dataset, recorded_request([{"asked": request.typed}], request.workload.pipeline.reference)
        )


def require_consent(common: Common, catalogue: Catalogue, pipeline: Pipeline, container: Container) -> None:
    """Prompt for consent, or raise `RefusedError`, if this pipeline needs it (S10, S11)."""
    try:
        require_trust(catalogue, pipeline, container)
    except RefusedError:
        question = (
            f"{pipeline.reference} {'; it '.join(find_consent_reasons(pipeline, container))}. Trust it?"
        )
        may_prompt = not common.json and sys.stdin.isatty() and sys.stderr.isatty()
        if not (may_prompt and click.confirm(question, err=True)):
            raise
        catalogue.trust(pipeline.reference)


def launch_and_follow(common: Common, request: Request, options: RunOptions) -> int:
    """Launch a single run, and follow it with `--wait`; return the exit code. Raises the failure of the run as an error."""
    request = with_job_proxy(request)
    run_store = RunStore()
    with notifying(common, options.notify) as notify, listening(common, launch_title(request)) as on_event:
        if options.wait:
            wait_for_short_pause(request.compute.name, on_event)
        reuse = Reuse(common.settings(), run_store, on_event) if options.reuse else None
        run = launch_at_site(common, request, run_store, on_event, reuse)
        if options.wait and not run.results.reused:
            [run] = wait_for_runs(common, run_store, [run], on_event, changed=notify)
        receipt = _collect_after(common, run_store, run, options.collect, on_event)
    if receipt is not None:
        report_collected(common, receipt)
    if options.wait or run.state.ended:
        report_ends(common, run_store, [run], resumable=may_complete(receipt))
    else:
        report_unfinished(common, run)
    return int(receipt.exit) if receipt is not None else 0


def launch_title(request: Request) -> str:
    """Return the title of the progress display."""
    return f"run {request.workload.pipeline.reference} at {request.compute.name}"


def launch_at_site(
    common: Common,
    request: Request,
    run_store: RunStore,
    on_event: Listener,
    reuse: Reuse | None = None,
    on_begin: Callable[[Run], None] | None = None,
) -> Run:
    """Connect to the site, and launch the run there. `on_begin` gets the run as soon as it has an id; by default the id is printed."""
    begun = ignore_run if common.json else on_begin or _id_printer(common)
    with launch_session(request, run_store, on_event) as session:
        return launch(request, session, Synchroniser(), reuse=reuse, on_begin=begun)


def _id_printer(common: Common) -> Callable[[Run], None]:
    def show(run: Run) -> None:
        common.output.line(run.id)
        flush_results()

    return show


def _collect_after(
    common: Common, run_store: RunStore, run: Run, options: CollectOptions, on_event: Listener
) -> Receipt | None:
    """Collect the outputs of a run that succeeded, if requested; those of a failed run are not collected."""
    folder = options.target
    if folder is None or run.state is not State.SUCCEEDED:
        return None
    saving = SaveOptions(save=not options.no_save)
    if run.results.from_copy:
        return _collect_copy(common, run_store, run, folder, saving, on_event)
    if options.dataset is not None:
        saving = saving_in(run_store, run, options.dataset)
    return collect_outputs(common, run_store, run, folder, on_event, saving)


def _collect_copy(
    common: Common, run_store: RunStore, run: Run, folder: str, saving: SaveOptions, on_event: Listener
) -> Receipt:
    """Copy the outputs from the folder into which they were collected before."""
    copy = find_collected_copy(run, run_store)
    if copy is None:
        raise NotFoundError(
            "outputs-gone",
            "the outputs of the earlier run were removed in the meantime",
            subject=run.id,
            hint="Run the same command again with --fresh.",
        )
    return copy_collected(run, run_store, copy, read_target(folder, common.settings()), saving, on_event)


def collect_outputs(
    common: Common, run_store: RunStore, run: Run, folder: str, on_event: Listener, saving: SaveOptions
) -> Receipt:
    """Pull the outputs of a run into a folder. Raises what `Collector.collect` does."""
    target = read_target(folder, common.settings())
    fetch_usage(common, run_store, run, on_event)
    collector = Collector(run_store, run_site(common, run.site), target, on_event, saving)
    return collector.collect(run, ended_tasks(run))[0]


def saving_in(run_store: RunStore, run: Run, dataset: str) -> SaveOptions:
    """Return the commit that saves a run in a dataset. Raises `UsageError`."""
    return dataset_saving(find_dataset(dataset, recorded_request(run_store.records(run.id), run.id)), run)


def report_collected(common: Common, receipt: Receipt) -> None:
    """Report the collected outputs: a record for programs, a sentence for people."""
    if common.json:
        record = receipt.to_record()
        fields = {name: record[name] for name in record if name not in {"schema", "kind"}}
        common.output.record("receipt", fields, flush=True)
        return
    moved = f"{receipt.files_moved} transferred"
    verified = f", verified by {receipt.proof_moved}" if receipt.proof_moved else ""
    common.output.info(f"{counted(receipt.files, 'file')} in {receipt.target}, {moved}{verified}")


def _show_dry_run(common: Common, request: Request) -> None:
    """Show the files of a run, and the command that would submit it, without contacting the site."""
    show_files(common, request, prepare_dry_run(request, new_identifier()))


def show_files(common: Common, request: Request, shown: DryRun) -> None:
    """Show files by their path in the run's folder, and the command that would submit the run."""
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
            for line in content.splitlines():
                common.output.line(line)
        else:
            common.output.raw(content.encode("utf-8", "surrogateescape"))


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
