"""Create, show and run bundles."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from hibali.amounts import format_size
from hibali.errors import Exit, IncompleteError, NotFoundError, RefusedError, RunFailedError, UsageError
from hibali.events import Listener
from hibali.files import account_names, write_atomic
from hibali.locations import read_location, read_target
from hibali.text import counted, path_fields, printable
from hibali_cli.handlers.launch import launch_at_site, read_request, require_consent
from hibali_cli.handlers.pipelines import open_catalogue
from hibali_cli.handlers.run_sites import opener, run_site, update_runs
from hibali_cli.handlers.run_watch import wait_for_runs
from hibali_cli.options import Common
from hibali_cli.output import Cell, flush_results
from hibali_cli.progress import listening
from hibali_cli.records import moment
from hibali_plugins.bundles.archive import Archive
from hibali_plugins.bundles.compare import OutputComparison, OutputResult, compare_outputs
from hibali_plugins.bundles.create import (
    Include,
    Parts,
    create_bundle,
    hash_input,
    inputs_of_invocation,
    inputs_of_run,
    real_place,
    recorded_values,
    require_single,
)
from hibali_plugins.bundles.read import (
    Bundle,
    PackedInput,
    below,
    check_contents,
    place_of,
    read_bundle,
    remove_unpacked,
    unpack,
)
from registry.catalogue import Catalogue, Download
from registry.images.images import check_image_record
from registry.images.record import FILE as IMAGE
from registry.images.record import write_record
from registry.invocation import check_invocation, read_invocation
from registry.pipeline import Pipeline
from registry.signature import is_signature_name, policy_of
from runs.collect import Collector, ended_tasks
from runs.containers.base import load_container
from runs.images import Pinned
from runs.model import RUN_ID, Input, Run, State
from runs.new_request import RunOptions, read_workload
from runs.outputs import hash_outputs, outputs_of
from runs.queue_limits import queue_full_error
from runs.request import Request, with_job_proxy
from runs.status import find_failure
from runs.store import RunStore
from transfers.history.journal import Receipt


def show_bundle(common: Common, file: str) -> None:
    """Show a bundle as a JSON line or as names and values."""
    with Archive(Path(file)) as archive:
        bundle = read_bundle(archive)
    record = bundle.record
    if common.json:
        image = bundle.image
        fields: dict[str, Any] = {
            **path_fields(file.encode("utf-8", "surrogateescape"), "file"),
            "bytes": Path(file).stat().st_size,
            "content": bundle.content,
            **record.to_fields(),
            "image": None
            if image is None
            else {"digest": image.digest, "id": image.id, "included": bool(bundle.image_file)},
        }
        common.output.record("bundle", fields, flush=True)
        return
    common.output.pairs(_pairs(bundle))


def _pairs(bundle: Bundle) -> dict[str, Cell]:
    record, run, outputs, image = bundle.record, bundle.record.run, bundle.record.outputs, bundle.image
    shown: dict[str, Cell] = {
        "pipeline": f"{record.name}@{record.version}",
        "digest": f"sha256 {record.digest}",
        "bundle": f"sha256 {bundle.content}",
        "image": f"{image.digest}{'' if bundle.image_file else ' (not included)'}" if image else None,
        "made by": f"hibali {record.hibali}",
    }
    for each in record.inputs:
        shown[f"input {each.member.split('/')[1]}"] = _describe_input(each)
    if run is not None:
        ended = f" with exit code {run.exit_code}" if run.exit_code is not None else ""
        shown |= {
            "run": f"{run.id} {run.state}{ended}",
            "at": f"{run.site} ({run.scheduler}, {run.container})",
            "ended": run.ended or None,
        }
    if outputs is not None:
        shown["outputs"] = f"{counted(outputs.files, 'file')}, {format_size(outputs.bytes)}"
        for problem in outputs.problems:
            shown[f"missing: {problem['path']}"] = problem["message"]
    return shown


def _describe_input(each: PackedInput) -> str:
    size = format_size(each.bytes)
    if each.type != "file":
        size = f"{counted(each.files, 'file')}, {size}"
    location = "" if each.included else f", not included; it was at {each.location}"
    return f"{each.id}: {each.member} ({size}{location})"


def show_comparison(
    common: Common, run: Run, bundle: Bundle, target: str, compared: Sequence[OutputComparison], code: int
) -> None:
    """Show every output with its result, then the counts."""
    counts = Counter(each.result for each in compared)
    recorded = bundle.record.run is not None
    if common.json:
        for each in compared if recorded else ():
            digests = {"recorded": each.recorded or None, "found": each.found or None}
            common.output.record("compared", {**path_fields(each.path), "fate": each.result, **digests})
        fields = {str(result): counts[result] if recorded else 0 for result in OutputResult}
        subject = {"bundle": bundle.content, "run": run.id, "target": target, "recorded": recorded}
        common.output.record("comparison", {**subject, **fields, "exit": code}, flush=True)
        return
    if not recorded:
        common.output.info("The bundle has no run: its outputs cannot be compared.")
        return
    for each in compared:
        common.output.text(f"{each.result:<9}  {printable(each.path)}\n")
    others = ", ".join(
        f"{counts[result]} {result}"
        for result in OutputResult
        if result is not OutputResult.EQUAL and counts[result]
    )
    summary = f"{counts[OutputResult.EQUAL]} of {len(bundle.outputs)}{'; ' + others if others else ''}"
    common.output.info(f"Equal outputs: {summary}. The outputs are in {target}.")


class IncludeOptions(NamedTuple):
    """The content to include in addition to descriptor, values and digests."""

    include: Include
    image: bool


def make_bundle(
    common: Common, what: str, *, output: str, pipeline: str | None, include: str | None, with_image: bool
) -> None:
    """Write the bundle of a run or of an invocation, and show its content."""
    target = Path(output)
    include_options = IncludeOptions(cast("Include", include or "small"), with_image)
    with listening(common, f"bundle {what}") as on_event:
        if RUN_ID.fullmatch(what):
            if pipeline is not None:
                raise UsageError(
                    "usage", "--pipeline is only for an invocation, not for a run", subject="--pipeline"
                )
            parts = _parts_of_run(common, what, include_options, on_event)
        else:
            parts = _parts_of_invocation(common, Path(what), pipeline, include_options, on_event)
        create_bundle(parts, target, on_event)
    if common.json:
        show_bundle(common, output)
        return
    with Archive(target) as archive:
        _show_created(common, target, read_bundle(archive))


def _parts_of_run(common: Common, run_id: str, include_options: IncludeOptions, on_event: Listener) -> Parts:
    run_store, catalogue = RunStore(), Catalogue()
    [run] = update_runs(common, run_store, [run_store.load(run_id)], on_event)
    require_single(run)
    outputs = outputs_of(run, run_store, lambda: run_site(common, run.site))
    pipeline = catalogue.find(run.spec.pipeline)
    invocation = check_invocation(pipeline, recorded_values(run, run_store, pipeline))
    site = common.settings().site(run.site)
    image = run.placement.image.removeprefix("sha256:")
    return Parts(
        pipeline=pipeline,
        invocation=invocation,
        inputs=inputs_of_run(
            run, run_store, invocation, common.settings(), site, opener(site, on_event), on_event
        ),
        published=run.status.ended or run.created,
        agent=account_names()[0],
        run=run,
        image_id=image,
        outputs=outputs,
        include=include_options.include,
        **_descriptor_files(catalogue, pipeline, include_options, started=image),
    )


def _parts_of_invocation(
    common: Common,
    invocation_path: Path,
    reference: str | None,
    include_options: IncludeOptions,
    on_event: Listener,
) -> Parts:
    if reference is None:
        raise UsageError(
            "usage",
            "an invocation does not contain the name of its pipeline",
            subject=str(invocation_path),
            hint="Add --pipeline NAME@VERSION, or use the id of a run: hibali runs list",
        )
    catalogue = Catalogue()
    pipeline = catalogue.find(reference)
    invocation = read_invocation(pipeline, invocation_path)
    changed = moment(invocation_path.stat().st_mtime_ns) or moment(time.time_ns()) or ""
    return Parts(
        pipeline=pipeline,
        invocation=invocation,
        inputs=inputs_of_invocation(invocation, common.settings(), on_event),
        published=f"{changed[:19]}Z",
        agent=account_names()[0],
        include=include_options.include,
        **_descriptor_files(catalogue, pipeline, include_options),
    )


def _descriptor_files(
    catalogue: Catalogue, pipeline: Pipeline, include_options: IncludeOptions, *, started: str = ""
) -> dict[str, Any]:
    """Return the files to include with a descriptor: signatures, and the record of its pinned image, if that was the one `started`."""
    files = catalogue.attachments(pipeline.name, pipeline.version)
    image = catalogue.image(pipeline)
    if image is not None and started and image.id != f"sha256:{started}":
        image = None
        if include_options.image:
            raise RefusedError(
                "other-image",
                f"the run was started with sha256:{started}, and the catalogue has another image",
                subject=pipeline.reference,
                hint="Leave out --with-image: the bundle then has only the digest of the run's image.",
            )
    return {
        "image": image,
        "image_file": catalogue.image_file(pipeline) if include_options.image else None,
        "signatures": {name: path.read_bytes() for name, path in files.items() if is_signature_name(name)},
    }


def _show_created(common: Common, target: Path, bundle: Bundle) -> None:
    """Show the bundle's file, the inputs that are not included, and its digest."""
    common.output.line(str(target))
    record = bundle.record
    for each in record.inputs:
        if not each.included:
            common.output.warn(
                f"the input {each.id} is not included, only its digest; the file is at {each.location}"
            )
    for problem in record.outputs.problems if record.outputs else ():
        common.output.warn(f"{problem['path']}: {problem['message']}")
    state = f", of a run with the state {record.run.state}" if record.run else ""
    common.output.info(
        f"{format_size(target.stat().st_size)}{state}; the sha256 of its manifest is {bundle.content}"
    )


@dataclass(frozen=True, slots=True)
class _RunOptions:
    """The parameters of the command."""

    file: str
    site_name: str
    target: str | None
    places: tuple[str, ...]
    name: str | None
    image: str
    wait: bool
    new: bool


def run_bundle(common: Common, **given: Any) -> int:
    """Repeat a bundle's run; returns the exit code. Raises the error that stopped it."""
    options = _RunOptions(**given)
    site = run_site(common, options.site_name)
    run_store = RunStore()
    with listening(common, f"bundle {options.file}") as on_event:
        with Archive(Path(options.file)) as archive:
            bundle = read_bundle(archive, options.name)
            places = _places(bundle, options.places)
            check_contents(archive, bundle)
            catalogue = open_catalogue(common)
            _add_to_catalogue(common, catalogue, bundle, options.file)
            require_consent(common, catalogue, bundle.pipeline, load_container(site.container.name))
            lock_name = f"bundle-{bundle.content}-{site.name}"
            with run_store.lock(lock_name, on_event=on_event):
                folder = unpack(archive, bundle, site.name)
                request = with_job_proxy(_request(common, options, bundle, folder, places, on_event))
                run = launch_at_site(
                    common,
                    request,
                    run_store,
                    on_event,
                    on_begin=lambda run: common.output.info(f"run {run.id}"),
                )
        if not options.wait:
            return _leave(common, run)
        [run] = wait_for_runs(common, run_store, [run], on_event)
        if run.state is State.LOST:
            raise find_failure(run) or RunFailedError("run-lost", "the run is lost", subject=run.id)
        receipt, compared = _collect(common, options, bundle, run, on_event)
        with run_store.lock(lock_name, on_event=on_event):
            remove_unpacked(bundle, site.name)
    return _show_result(common, options, bundle, run, receipt, compared)


def _add_to_catalogue(common: Common, catalogue: Catalogue, bundle: Bundle, subject: str) -> None:
    """Add the pipeline to the catalogue, under the rules for fetched pipelines."""
    pipeline = bundle.pipeline
    attachments, image = dict(bundle.signatures), ""
    if bundle.image is not None:
        attachments[IMAGE] = write_record(bundle.image)
        image = check_image_record(pipeline, attachments[IMAGE], printable(subject))
    here = catalogue.attachments(pipeline.name, pipeline.version)
    known = catalogue.pins().get((pipeline.name, pipeline.version)) == pipeline.digest
    if not known or (IMAGE in attachments and IMAGE not in here):
        policy_of(common.settings().catalogue).check(pipeline, bundle.signatures, printable(subject), image)
    catalogue.add_downloads([Download(pipeline, attachments)], f"Take {pipeline.reference} from a bundle")


def _places(bundle: Bundle, given: Sequence[str]) -> dict[int, str]:
    """Return the locations of inputs that are not in the bundle, by number. Raises `UsageError`, and `NotFoundError` with all missing ones."""
    away = [(number, each) for number, each in enumerate(bundle.record.inputs) if not each.included]
    places: dict[int, str] = {}
    for text in given:
        identifier, separator, location = text.partition("=")
        number = next((n for n, each in away if each.id == identifier and n not in places), None)
        if not separator or not location or number is None:
            raise UsageError(
                "bad-input",
                "this is not ID=LOCATION with the id of an input that the bundle does not include",
                subject=f"--input {text}",
                hint="To see which inputs are not included: hibali bundle show FILE",
            )
        places[number] = location
    missing = [each for number, each in away if number not in places]
    if missing:
        lines = [f"{each.id}, which was at {each.location}" for each in missing]
        raise NotFoundError(
            "inputs-not-included",
            "\n".join(["the bundle has only the digests of these inputs:", *lines]),
            hint=" ".join(f"--input {each.id}=LOCATION" for each in missing[:3]),
        )
    return places


def _request(
    common: Common,
    options: _RunOptions,
    bundle: Bundle,
    folder: Path,
    places: Mapping[int, str],
    on_event: Listener,
) -> Request:
    """Return the request of `hibali run` with the current locations of the inputs, each compared with its digests."""
    located = {
        number: str(place_of(folder, each)) if each.included else places[number]
        for number, each in enumerate(bundle.record.inputs)
    }
    invocation_path = folder / "answers.json"
    write_atomic(invocation_path, json.dumps(_values(bundle, located)).encode("ascii"))
    workload = read_workload(bundle.pipeline, invocation_path, None)
    run_options = RunOptions(image=options.image)
    request = read_request(common, workload, invocation_path, options.site_name, run_options)
    for number, each in enumerate(bundle.record.inputs):
        identity = request.workload.identities[number]
        same = (
            identity is not None and identity.files == below(bundle.inputs[number])
            if each.included
            else _is_same(common, bundle, number, places[number], on_event)
        )
        if not same:
            raise RefusedError(
                "input-differs",
                f"the input {each.id} differs from that of the bundle: its digests are different",
                subject=printable(located[number]),
                hint=f"Remove {folder}, then run the same command again." if each.included else "",
            )
    return replace(_with_image(request, bundle, folder, options.image), new=options.new)


def _with_image(request: Request, bundle: Bundle, folder: Path, given: str) -> Request:
    """Return the request with the image of `--image`, else that of the bundle, of the catalogue, or of the bundle's run."""
    if given or not request.compute.container.isolates:
        return replace(request, image=given)
    if bundle.image is not None and bundle.image_file:
        archive = folder / bundle.image_file
        return replace(request, pinned=Pinned(bundle.image, lambda: archive))
    if request.pinned is None and bundle.record.run is not None:
        return replace(request, image=bundle.record.run.image)
    return request


def _values(bundle: Bundle, located: Mapping[int, str]) -> dict[str, Any]:
    """Return the input values with the current locations of files."""
    values = dict(bundle.values)
    for identifier in {each.id for each in bundle.record.inputs}:
        own = [located[n] for n, each in enumerate(bundle.record.inputs) if each.id == identifier]
        values[identifier] = own if isinstance(values[identifier], list) else own[0]
    return values


def _is_same(common: Common, bundle: Bundle, number: int, location: str, on_event: Listener) -> bool:
    """Return whether the files there match the bundle's digests; their names may differ."""
    recorded = bundle.record.inputs[number]
    place = real_place(read_location(location, common.settings()))
    content = hash_input(Input(recorded.id, number, location), place, on_event)
    return content.folder == (recorded.type == "folder") and below(content.digests) == below(
        bundle.inputs[number]
    )


def _leave(common: Common, run: Run) -> int:
    """Report a run that was only submitted: the same command without --no-wait continues it. Raises `TryLaterError` where the queue is full."""
    if common.json:
        common.output.record("run", run.to_record())
    else:
        common.output.line(run.id)
    if run.waits:
        flush_results()
        raise queue_full_error(run)
    if not common.json:
        common.output.info(
            f"{run.state} at {run.site}. To compare its outputs, run the same command without --no-wait."
        )
    return int(Exit.DONE)


def _collect(
    common: Common, options: _RunOptions, bundle: Bundle, run: Run, on_event: Listener
) -> tuple[Receipt, list[OutputComparison]]:
    """Pull and verify the outputs of the run, and compare their digests with the recorded ones."""
    site = run_site(common, run.site)
    target = read_target(options.target or f"./{run.id}", common.settings())
    receipt, _ = Collector(RunStore(), site, target, on_event).collect(run, ended_tasks(run))
    return receipt, compare_outputs(bundle.outputs, hash_outputs(run, site).digests)


def _show_result(
    common: Common,
    options: _RunOptions,
    bundle: Bundle,
    run: Run,
    receipt: Receipt,
    compared: Sequence[OutputComparison],
) -> int:
    """Show the comparison; afterwards the same command starts a new run. Raises its result as an error without --json."""
    differs = bundle.record.run is not None and any(
        each.result is not OutputResult.EQUAL for each in compared
    )
    code = _exit_code(receipt, differs=differs)
    show_comparison(common, run, bundle, receipt.target, compared, int(code))
    flush_results()
    if not run.results.reported:
        RunStore().note(run.id, "reported")
    failure = find_failure(run)
    if differs and code is Exit.INCOMPLETE:
        failure = IncompleteError(
            "outputs-differ",
            "some outputs differ from those of the bundle; see above",
            subject=printable(options.file),
        )
    if failure is not None and not common.json:
        raise failure
    return int(code)


def _exit_code(receipt: Receipt, *, differs: bool) -> Exit:
    """Return the exit code: RUN_FAILED first, then problems of collecting outputs, then the comparison."""
    if receipt.exit is Exit.DONE and differs:
        return Exit.INCOMPLETE
    return receipt.exit
