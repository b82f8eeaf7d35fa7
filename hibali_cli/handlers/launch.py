"""Build the request of `hibali run`, ask for consent, launch it, wait, and collect its outputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hibali.errors import RefusedError, UsageError
from hibali_cli.options import Common
from hibali_cli.run_options import Order, load_first, settle, show_resources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hibali.config.model import Site
    from hibali.events import Listener
    from registry.catalogue import Catalogue
    from registry.invocation import Invocation
    from registry.pipeline import Pipeline
    from runs.containers.base import Container
    from runs.fast_storage import FastOptions
    from runs.inputs import Located
    from runs.model import Run
    from runs.prepare import Prepared
    from runs.request import Request
    from runs.store import RunStore
    from transfers.journal import Receipt
    from transfers.request import Saving


def collect_outputs(
    common: Common, run_store: RunStore, run: Run, folder: str, on_event: Listener, saving: Saving
) -> Receipt:
    """Pull the outputs into a folder. Raises what `runs.collect.collect` does."""
    from hibali.locations import read_target
    from hibali_cli.handlers.run_sites import fetch_usage, run_site
    from runs.collect import collect

    target = read_target(folder, common.settings())
    fetch_usage(common, run_store, run, on_event)
    return collect(run, run_site(common, run.site), target, run_store, on_event, saving=saving)


def saving_in(run_store: RunStore, run: Run, dataset: str) -> Saving:
    """The commit that keeps a run in a dataset. Raises `UsageError`."""
    from runs.dataset import find_dataset, recorded_request, saving_of

    return saving_of(find_dataset(dataset, recorded_request(run_store.records(run.id), run.id)), run)


def report_collected(common: Common, receipt: Receipt) -> None:
    """A record for programs, one sentence for people."""
    if common.json:
        record = receipt.to_record()
        common.output.record(
            "receipt", {name: record[name] for name in record if name not in {"schema", "kind"}}, flush=True
        )
    else:
        common.output.say(
            f"{receipt.files} files in {receipt.target}, {receipt.files_moved} moved, proof {receipt.proof_moved or 'none needed'}"
        )


class Into(NamedTuple):
    """Where outputs go after a run that is waited for, if anywhere."""

    folder: str | None
    dataset: str | None
    no_save: bool


def check_collecting(into: Into, *, wait: bool) -> None:
    """Raise `UsageError` for what cannot be asked for together."""
    folder, dataset, no_save = into
    if folder is not None and dataset is not None:
        raise UsageError(
            "usage", "outputs go to one place: it says where, as --collect does", subject="--dataset"
        )
    if (folder is not None or dataset is not None) and not wait:
        option = "--collect" if dataset is None else "--dataset"
        later = "DIR" if dataset is None else "--dataset DIR"
        hint = f"Add --wait; or, when the run has ended: hibali runs collect ID {later}"
        raise UsageError("usage", "outputs are there when the run has ended", subject=option, hint=hint)
    if no_save and folder is None:
        raise UsageError("usage", "it is for --collect", subject="--no-save")


def collect_into(
    common: Common, run_store: RunStore, run: Run, into: Into, on_event: Listener
) -> Receipt | None:
    """Outputs of a run that succeeded; of one that failed nothing is kept unasked."""
    from runs.model import State
    from transfers.request import Saving

    folder = into.dataset or into.folder
    if folder is None or run.state is not State.SUCCEEDED:
        return None
    saving = Saving(save=not into.no_save)
    if run.results.from_copy:
        return _collect_kept(common, run_store, run, folder, saving, on_event)
    if into.dataset is not None:
        saving = saving_in(run_store, run, into.dataset)
    return collect_outputs(common, run_store, run, folder, on_event, saving)


def _collect_kept(
    common: Common, run_store: RunStore, run: Run, folder: str, saving: Saving, on_event: Listener
) -> Receipt:
    """From where they were collected before."""
    from hibali.errors import NotFoundError
    from hibali.locations import read_target
    from runs.inputs import copy_collected, find_collected_copy

    kept = find_collected_copy(run, run_store)
    if kept is None:
        raise NotFoundError("outputs-gone", "what the run left was taken away at this moment", subject=run.id)
    return copy_collected(kept, read_target(folder, common.settings()), saving, on_event)


def read_request(
    common: Common,
    pipeline: Pipeline,
    answers: Path,
    site_name: str,
    image: str,
    order: Order | None = None,
    *,
    identify: bool,
    located: Sequence[Located] | None = None,
    marks: FastOptions | None = None,
) -> Request:
    """Everything that can be checked here is checked before the site is asked anything.

    `located` are the inputs, where they were looked at without a site already; `marks` say what goes to fast storage.
    """
    from hibali_cli.handlers.run_sites import run_site
    from registry.invocation import read_invocation
    from runs.containers.base import load_container
    from runs.dataset import typed_request
    from runs.fast_storage import NO_FAST_OPTIONS
    from runs.inputs import list_inputs, list_references, locate_inputs, seen_from

    site = run_site(common, site_name)
    invocation = read_invocation(pipeline, answers)
    container = load_container(site.container.name)
    container.image_name(pipeline.container)
    references = list_references(list_inputs(invocation), common.settings())
    order = order or Order()
    first = settle(common, references, order, site, container) if identify else load_first(order)
    if located is None:
        located = locate_inputs(invocation, common.settings(), site, identify=identify)
    else:
        located = seen_from(located, site, common.settings())
    asked = typed_request(answers, located, image).to_fields()
    return make_request(
        pipeline,
        invocation,
        located,
        site,
        image,
        asked,
        first,
        hold=order.hold,
        marks=marks or NO_FAST_OPTIONS,
    )


def make_request(
    pipeline: Pipeline,
    invocation: Invocation,
    located: Sequence[Located],
    site: Site,
    image: str,
    asked: Mapping[str, Any],
    first: Sequence[Run] = (),
    *,
    hold: bool = False,
    marks: FastOptions | None = None,
) -> Request:
    """The request of these answers at a site, with its inputs located; `first` are the runs that come before.

    Without `marks` nothing goes to fast storage; those of the tasks of a sweep are read for each task.
    """
    from hibali_cli.handlers.pipelines import pinned_image
    from registry.catalogue import Catalogue
    from runs.containers.base import load_container
    from runs.fast_storage import NOTHING_FAST, choose_fast_storage
    from runs.inputs import dependencies_of
    from runs.request import Request
    from runs.schedulers.base import load_scheduler

    container = load_container(site.container.name)
    inputs = tuple(each.input for each in located)
    in_place = [each.identity is None or each.input.in_place for each in located]
    names_archive = bool(image) and not image.startswith("sha256:")
    takes_pinned = container.isolates and bool(container.formats) and not names_archive
    return Request(
        pipeline=pipeline,
        invocation=invocation,
        inputs=inputs,
        places=tuple(each.place for each in located),
        identities=tuple(each.identity for each in located),
        site=site,
        scheduler=load_scheduler(site.scheduler.name if site.scheduler else "direct"),
        container=container,
        pinned=pinned_image(Catalogue(), pipeline) if takes_pinned else None,
        fast=NOTHING_FAST if marks is None else choose_fast_storage(site, inputs, in_place, marks),
        asked=asked,
        after=tuple(run.id for run in first),
        waiting=dependencies_of([each.taken for each in located if each.taken], first, site, hold=hold),
        proxy=site.proxy is not None and site.proxy.jobs,
    )


def require_consent(common: Common, catalogue: Catalogue, pipeline: Pipeline, container: Container) -> None:
    """Ask for consent, or raise `RefusedError`, where this pipeline needs it (S10, S11).

    Where nothing confines it, the tool is its author's code with all of the user's rights.
    """
    from runs.containers.base import find_consent_reasons

    reasons = find_consent_reasons(pipeline, container)
    if not reasons or catalogue.is_trusted(pipeline.digest):
        return
    asked = f"{pipeline.reference} {'; it '.join(reasons)}. Trust it?"
    if not common.json and sys.stdin.isatty() and sys.stderr.isatty() and click.confirm(asked, err=True):
        catalogue.trust(pipeline.reference)
        return
    raise RefusedError(
        "not-trusted",
        f"this pipeline {'; it '.join(reasons)}. Nobody has consented to that",
        subject=pipeline.reference,
        hint=f"Read it (`hibali pipelines show {pipeline.reference}`), then: hibali pipelines trust {pipeline.reference}",
    )


def run_one(
    common: Common,
    request: Request,
    *,
    wait: bool,
    into: Into,
    reuses: bool = False,
    notify: str | None = None,
) -> int:
    """Launch a single run, and follow it where that is asked for; the exit code. Raises how it failed."""
    from hibali_cli.handlers.run_sites import opener, wait_for_runs
    from hibali_cli.handlers.runs import report_ends, report_unfinished
    from hibali_cli.progress import listening
    from hibali_cli.run_options import notifying
    from runs.launch import launch
    from runs.request import with_job_proxy
    from runs.reuse import Reuse
    from runs.stage import Synchroniser
    from runs.store import RunStore

    request = with_job_proxy(request)
    run_store = RunStore()
    title = f"run {request.pipeline.reference} at {request.site.name}"
    with notifying(common, notify) as changed, listening(common, title) as on_event:
        host = opener(request.site, on_event)()
        try:
            run = launch(
                request,
                host,
                run_store,
                Synchroniser(),
                reuse=Reuse(common.settings(), run_store, on_event) if reuses else None,
                began=lambda run: announce(common, run),
                on_event=on_event,
            )
        finally:
            host.close()
        if wait and not run.results.reused:
            [run] = wait_for_runs(common, run_store, [run], on_event, changed=changed)
        receipt = collect_into(common, run_store, run, into, on_event)
    if receipt is not None:
        report_collected(common, receipt)
    if wait or run.state.ended:
        report_ends(common, run_store, [run])
    else:
        report_unfinished(common, run)
    return int(receipt.exit) if receipt is not None else 0


def announce(common: Common, run: Run) -> None:
    """The id comes out as soon as there is one, whatever happens next."""
    from hibali_cli.output import flush_results

    if not common.json:
        common.output.line(run.id)
        flush_results()


def show_request(common: Common, request: Request) -> None:
    """What would be put at the site, and the command that would be said there; nothing is asked of it."""
    from hibali.ledger import new_identifier
    from runs.request import show_prepared
    from runs.script import FILE

    prepared = show_prepared(request, new_identifier())
    files = {"job.sh": prepared.job_script, "start": prepared.start, "command": prepared.command}
    if prepared.fast:
        files["fast.sh"] = prepared.fast
    if prepared.required:
        files[FILE] = prepared.required
    files |= {f"work/{path}": content for path, content in prepared.configuration_files.items()}
    show_files(common, request, prepared, files)


def show_files(common: Common, request: Request, prepared: Prepared, files: Mapping[str, str]) -> None:
    """What would be put into the folder of `prepared`, and the command that would be said there."""
    if common.json:
        outputs = [{"id": each.id, "path": each.path, "optional": each.optional} for each in prepared.outputs]
        common.output.record(
            "prepared",
            {
                "pipeline": request.pipeline.reference,
                "site": request.site.name,
                "resources": prepared.asked.to_fields(),
                "submit": list(prepared.submit),
                "files": dict(files),
                "outputs": outputs,
            },
        )
        return
    show_resources(common.output, prepared.asked)
    for path, content in files.items():
        common.output.say(f"--- {prepared.folder}/{path}")
        if sys.stdout.isatty():
            for line in content.splitlines():
                common.output.line(line)
        else:
            common.output.raw(content.encode("utf-8", "surrogateescape"))
