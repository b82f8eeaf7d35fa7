"""Launch a run: stage its inputs, write its files, and submit it once; the same command resumes after any interruption."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from hibali import __version__
from hibali.errors import Exit, IncompleteError, TryLaterError, UsageError
from hibali.events import Listener, Noted, ignore
from hibali.ledger import new_identifier, not_started
from hibali.locations import Location
from hibali.locks import FolderLock
from hibali.plugins import if_offered
from hibali.text import as_bytes, as_text, path_fields, printable
from registry.command_line import build_command_line
from registry.invocation import Invocation
from runs.adopt import refuse_unrecorded, write_run_manifest
from runs.cache import expected_wait
from runs.clean import make_work_folder
from runs.collect import pull_files
from runs.dependencies import check_needs, dependency_jobs
from runs.identity import Identity, identify_for_nodes, unseen_by_nodes
from runs.images import SiteImages, find_image
from runs.model import Carrier, Input, Output, Pilot, Run, State, ignore_run
from runs.new_request import resource_argv
from runs.prepare import Prepared, prepare
from runs.queue_limits import cancel_before_submission, chunk_parts, run_part, submit_parts
from runs.records import output_fields, sweep_of
from runs.request import Request, job_proxy, workload_key
from runs.resources import show_value
from runs.reuse import Reuse
from runs.schedulers.base import BatchSystem
from runs.script import PROXY
from runs.services.base import FOLDER, ServiceHost, ToolRequest, refusal
from runs.site_commands import check_scheduler_chosen
from runs.site_session import SiteOpener, SiteSession
from runs.stage import Cache, open_cache
from runs.store import RunStore, runs_of
from runs.sweeps.launch import begin_tasks, stage_tasks
from runs.task_runner import load_task_runner
from transfers.engine.request import SaveOptions
from transfers.remote.host import RemoteHost

Fields = list[dict[str, Any]]  # of DecidedResources.to_fields


def launch_session(request: Request, run_store: RunStore, on_event: Listener = ignore) -> SiteSession:
    """Connect to the site of a request; the caller closes the session."""
    return SiteOpener(request.compute.site, request.compute.jobs.name, run_store, on_event)()


def launch(
    request: Request,
    session: SiteSession,
    carrier: Carrier,
    *,
    reuse: Reuse | None = None,
    on_begin: Callable[[Run], None] = ignore_run,
) -> Run:
    """Submit the run of this request: a new one, or the one that the same command began and whose end was not reported yet.

    Every step is in the ledger before it happens, so that the command can be repeated.

    Args:
        request: The workload.
        session: A connection to its site.
        carrier: Copies the inputs.
        reuse: Finds a run that already computed the same, which is then returned instead; not for the tasks of a sweep.
        on_begin: Called with the run as soon as it has an id.

    Returns:
        The run with its job; CANCELLED if that was requested meanwhile; without a job while the queue is full (`Run.waits`).
    """
    host, run_store = session.host, session.runs
    reuse = None if request.workload.tasks else reuse  # it compares only the values that all tasks share
    if isinstance(host, ServiceHost):
        check_supported(request)
    resources = request.decide_resources().to_fields()
    inputs, identities = _locate_inputs(request, host)
    key = _request_key(request, identities)
    with ExitStack() as locks:
        if request.command_key not in {"", key}:  # one named site has the same key
            locks.enter_context(_lock(session, request.command_key))
            _check_site_of_command(request, run_store)
        locks.enter_context(_lock(session, key))
        run = None if request.new else run_store.find_unreported(key)
        if request.resumed and (run is None or run.id != request.resumed):
            raise _not_the_same(request.resumed)
        if reuse is not None and (run is None or run.state is State.SUCCEEDED):
            run = reuse.find(request, identities) or run
        pilot = _find_pilot(request, host, run)
        if run is None:
            _check_new_run(request, session, key)
            contents = reuse.contents(request, identities) if reuse else [each.content for each in identities]
            run = _begin(request, inputs, identities, contents, run_store, key)
        on_begin(run)
        if not run.results.reused:
            record_resources(run_store, run, resources, session.on_event)
        if run.sweep is not None:
            run = _record_pilot(run_store, run, pilot, session.on_event, wanted=bool(request.job.allocations))
        if _is_submitted(run) or run.state.ended:
            return run
        if run.submission.cancelled and run.sweep is None:
            return cancel_before_submission(session, run)
        # the decision for a proxy was recorded when the run was begun; options of a resuming command do not change it
        request = request.with_workload(inputs=tuple(inputs)).with_job(proxy=run.submission.proxy)
        if isinstance(host, ServiceHost):
            return submit_to_service(session, host, request, run)
        try:
            return _stage_and_submit(session, carrier, request, identities, run)
        except UsageError as refusal:
            raise _with_typed_options(refusal, request) from None


def _with_typed_options(refusal: UsageError, request: Request) -> UsageError:
    """Return a rejection that names the options of the command line that requested resources."""
    typed = dict.fromkeys(each.partition("=")[0] for each in resource_argv(request.job.resources))
    if refusal.code != "submission-rejected" or not typed:
        return refusal
    hint = f"Correct {', '.join(typed)}, or the site's [scheduler] table for what was not typed."
    return UsageError(refusal.code, refusal.message, subject=refusal.subject, hint=hint)


def _check_new_run(request: Request, session: SiteSession, key: str) -> None:
    """Raise the reason why a new run cannot be begun, before there is any trace of it."""
    host, run_store = session.host, session.runs
    check_scheduler_chosen(request.compute.site, host)
    if not request.new:
        refuse_unrecorded(host, request.compute.site, run_store, key)
    check_needs(session, request.job.dependencies.needs)


def request_key(request: Request, host: RemoteHost) -> str:
    """Return the key of a request, which finds its run; the site is queried only for inputs that are there."""
    return _request_key(request, _locate_inputs(request, host)[1])


def _request_key(request: Request, identities: Sequence[Identity]) -> str:
    texts = [identity.text for identity in identities]
    return workload_key(request.workload, texts, request.compute.name)


def _lock(session: SiteSession, key: str) -> FolderLock:
    """Lock a key; raises `RefusedError` if the ledger cannot be written, before anything was started."""
    try:
        return session.runs.lock(key, on_event=session.on_event)
    except OSError as problem:
        raise not_started(problem, Path(str(problem.filename or "runs"))) from None


def _check_site_of_command(request: Request, run_store: RunStore) -> None:
    """Refuse to start the run if the same command was started at another site since a site was chosen."""
    run = None if request.new else run_store.find_unreported(request.command_key)
    if run is not None and run.site != request.compute.name:
        raise TryLaterError(
            "chosen-elsewhere",
            f"the same command was just started at {run.site}",
            subject=run.id,
            hint="Run the same command again to continue that run.",
            transient=False,
        )


def _not_the_same(run_id: str) -> TryLaterError:
    return TryLaterError(
        "other-run",
        "it has these tasks and is not over, but was not started by this command: another site, name or content of the inputs, or a rerun",
        subject=run_id,
        hint=f"Wait for its end: hibali runs wait {run_id}; or cancel it: hibali runs cancel {run_id}. Then repeat the command.",
        transient=False,
    )


def _find_pilot(request: Request, host: RemoteHost, run: Run | None) -> Pilot | None:
    """Return the pilot for a sweep, None if it has job arrays or was staged before.

    Raises what prevents one before there is any trace of the run.
    """
    if not request.job.allocations or (run is not None and run.sweep is not None and run.sweep.chunks):
        return None
    return load_task_runner().prepare_pilot(request, host)


def _record_pilot(
    run_store: RunStore, run: Run, pilot: Pilot | None, on_event: Listener, *, wanted: bool
) -> Run:
    """Record whether a pilot or job arrays run a sweep, unless it was staged before.

    This is no part of a run's key, just as the resources of its jobs.
    """
    sweep = sweep_of(run)
    if sweep.chunks:
        if (sweep.pilot is not None) is not wanted:
            before, now = ("by a pilot", "job arrays") if sweep.pilot else ("as job arrays", "a pilot")
            on_event(
                Noted(
                    f"run {run.id} was already started {before}; to start another run with {now}, add --new"
                )
            )
        return run
    if sweep.pilot == pilot:
        return run
    return run_store.note(run.id, "pilot", {"pilot": None if pilot is None else pilot.to_fields()})


def _is_submitted(run: Run) -> bool:
    return bool(run.job) and (run.sweep is None or not run.sweep.unsubmitted())


def _locate_inputs(request: Request, host: RemoteHost) -> tuple[list[Input], list[Identity]]:
    """Identify all inputs; those that are at the site get their path there, unless its compute nodes do not see them."""
    workload = request.workload
    inputs: list[Input] = []
    identities: list[Identity] = []
    for each, location, known in zip(workload.inputs, workload.locations, workload.identities, strict=True):
        if each.below and isinstance(host, ServiceHost):
            raise UsageError("bad-input", "a job service gets whole folders", subject=printable(each.text))
        if known is None and isinstance(host, ServiceHost):
            found = host.service.find_input(location)
            inputs.append(replace(each, in_place=True, source=found.reference))
            identities.append(Identity(f"site:{location.site.name}:{found.reference}:{found.mark}"))
        elif known is None:
            identity, path = identify_for_nodes(host, request.compute.site, location)
            inputs.append(each if path is None else replace(each, in_place=True, source=as_text(path)))
            identities.append(identity)
        else:
            inputs.append(each)
            identities.append(known)
    return inputs, identities


def _begin(
    request: Request,
    inputs: Sequence[Input],
    identities: Sequence[Identity],
    contents: Iterable[str],
    run_store: RunStore,
    key: str,
) -> Run:
    """Record a new run. Everything is prepared once before, without a folder: a run that cannot be prepared must not be in the ledger."""
    run_id = new_identifier()
    workload, compute = request.workload, request.compute
    outputs: tuple[Output, ...] = ()
    more: dict[str, Any] = {"origin": workload.origin} if workload.origin else {}
    if request.job.proxy:
        more["proxy"] = True
    if workload.tasks:
        more |= begin_tasks(request, inputs, run_id)
    elif not isinstance(compute.jobs, BatchSystem):
        outputs = declared_outputs(request, inputs)
    else:
        outputs = prepare(request, inputs, run_id, f"/{run_id}").outputs
    fields = {
        "pipeline": workload.pipeline.reference,
        "pipeline_digest": workload.pipeline.digest,
        "site": compute.name,
        "name": workload.name,
        "scheduler": compute.jobs.name,
        "container": compute.container.name,
        "hibali": __version__,
        "invocation": dict(workload.invocation.as_written),
        "asked": dict(request.typed),
        "resources": request.decide_resources().to_fields(),
        "after": list(workload.after),
        "hold": request.job.dependencies.hold,
        "inputs": _input_fields(request, inputs, identities, contents),
        "prologue": list(compute.settings.prologue),
        "outputs": output_fields(outputs),
        **more,
    }
    return run_store.begin(run_id, key, fields, line=request.command_key)


def _input_fields(
    request: Request, inputs: Sequence[Input], identities: Sequence[Identity], contents: Iterable[str]
) -> list[dict[str, str]]:
    """Return the inputs as the ledger has them; their location is absolute, because the typed path may be relative."""
    locations = request.workload.locations
    return [
        {
            "id": each.id,
            "name": each.name,
            **({"below": each.below} if each.below else {}),
            "text": each.text,
            "location": location.path if location.typed_local else location.text,
            "identity": identity.text,
            "content": content,
        }
        for each, location, identity, content in zip(inputs, locations, identities, contents, strict=True)
    ]


def record_resources(run_store: RunStore, run: Run, resources: Fields, on_event: Listener) -> None:
    """Record the resources that the command requests now, if the run is not submitted yet.

    They are no part of a run's key, so that a command with other resources resumes the same run.
    """
    before = recorded_resources(run_store, run.id)
    if before is None or _values(before) == _values(resources):
        return
    if run.job or run.state.ended:
        was, now = _format_resources(before), _format_resources(resources)
        on_event(
            Noted(
                f"run {run.id} was already submitted with {was}; to start another run with {now}, add --new"
            )
        )
    else:
        run_store.note(run.id, "resources", {"resources": resources})


def recorded_resources(run_store: RunStore, run_id: str) -> Fields | None:
    """Return the resources that were last requested for a run; None for a run of an older version."""
    for record in reversed(run_store.records(run_id)):
        found = record.get("resources")
        if isinstance(found, list):
            return found
    return None


def _values(resources: Fields) -> list[tuple[Any, Any]]:
    """Return names and values, without the origin of each value."""
    return [(each.get("name"), each.get("value")) for each in resources]


def _format_resources(resources: Fields) -> str:
    shown = [f"{name} {show_value(str(name), value)}" for name, value in _values(resources)]
    return ", ".join(shown) or "the site's defaults"


def _stage_and_submit(
    session: SiteSession, carrier: Carrier, request: Request, identities: Sequence[Identity], run: Run
) -> Run:
    """Stage everything that the run needs at its site, and submit it."""
    host, run_store, on_event = session.host, session.runs, session.on_event
    site, tasks = request.compute.site, request.workload.tasks
    work = make_work_folder(host, site, b"runs", b"cache", b"images")
    if unseen_by_nodes(host, site, work):
        raise UsageError(
            "work-not-on-nodes",
            "the work folder is in a root that compute nodes do not see, so that no job could start",
            subject=printable(work),
            hint=f"Set sites.{site.name}.work to a folder that they see. Nothing was submitted.",
        )
    folder = work + b"/runs/" + run.id.encode("ascii")
    host.make_folder(folder if tasks else folder + b"/work")
    if run.state is State.PREPARED:
        write_run_manifest(host, folder, run_store, run)
    cache = open_cache(host, site, work, carrier, on_event)
    inputs = _stage_inputs(request, identities, cache, run.id, on_event)
    images = SiteImages(host, site, request.compute.container, work, cache, on_event)
    image = find_image(
        request.workload.pipeline, request.compute.container, images, request.image, request.pinned
    )
    if tasks:
        request = request.with_workload(inputs=tuple(inputs))
        run = stage_tasks(request, run, host, run_store, as_text(folder), image, cache)
        return submit_parts(session, run, chunk_parts(session, run))
    dependencies = request.job.dependencies
    jobs = dependency_jobs(session, run, dependencies.needs)
    if isinstance(jobs, Run):
        return jobs
    request = request.with_job(dependencies=replace(dependencies, jobs=jobs, hold=run.submission.hold))
    prepared = prepare(request, inputs, run.id, as_text(folder), image=image.started)
    if image.id:
        run_store.note(run.id, "image", {"id": image.id.removeprefix("sha256:")})
    if run.state is State.PREPARED:
        run = run_store.note(run.id, "staged", path_fields(folder, "folder"))
    part = run_part(run, prepared.submit, lambda: write_run_files(host, prepared, job_proxy(request)))
    return submit_parts(session, run, [part])


def _stage_inputs(
    request: Request, identities: Sequence[Identity], cache: Cache, run_id: str, on_event: Listener
) -> list[Input]:
    """Stage the inputs, and return them with their absolute paths at the site; the run holds them in the cache."""
    cache.hold(run_id, identities)
    workload = request.workload
    inputs = []
    for each, location, identity in zip(workload.inputs, workload.locations, identities, strict=True):
        source = (
            each.source if each.in_place else as_text(cache.stage_with_retries(identity, location, on_event))
        )
        inputs.append(replace(each, source=source))
    if request.compute.site.purge is not None:
        wait = expected_wait(runs_of(workload.pipeline.digest), request.compute.name)
        paths = {f"the input {each.id} ({each.text})": as_bytes(each.source) for each in inputs}
        cache.warn_of_purge(paths, wait)
    return inputs


def write_run_files(host: RemoteHost, prepared: Prepared, proxy: bytes = b"") -> None:
    """Write the files of a run into its folder, the job script last; writing them again changes nothing."""
    folder = as_bytes(prepared.folder)
    _write_copies(host, prepared, folder)
    if proxy:
        host.put(folder + PROXY, proxy)  # created with mode 0600, like every file that is put
    for path, text in prepared.files().items():
        target = folder + b"/" + as_bytes(path)
        parent = target.rpartition(b"/")[0]
        if parent != folder:
            host.make_folder(parent)
        host.put(target, as_bytes(text))
    host.put(folder + b"/job.sh", as_bytes(prepared.job_script), executable=True)


def _write_copies(host: RemoteHost, prepared: Prepared, folder: bytes) -> None:
    """Write all private copies of inputs or none, so that a job never uses an incomplete copy."""
    final = folder + b"/inputs"
    if not prepared.copies or host.stat(final) is not None:
        return
    partial = final + b"-" + secrets.token_hex(8).encode("ascii")
    for each in prepared.copies:
        target = partial + as_bytes(each.target).removeprefix(final)
        host.make_folder(target.rpartition(b"/")[0])
        host.copy(as_bytes(each.source), target)
    host.move(partial, final)
    if host.stat(final) is None:
        raise IncompleteError(
            "not-copied",
            "the private copies of the inputs could not be moved to their final name",
            subject=printable(final),
            hint="Run the same command again to resume.",
        )


def check_supported(request: Request) -> None:
    """Raise `UsageError` for what no service does with an installed tool."""
    workload, job, service = request.workload, request.job, request.compute.jobs.name
    wishes = {
        "start a job later: leave out --hold": job.dependencies.hold,
        "run a sweep: start a run for each row": bool(workload.tasks),
        "run tasks in a pilot": bool(job.allocations),
        "use another image than its own": bool(request.image),
        "give a job a proxy": job.proxy,
        "use fast storage": job.fast.is_used,
        "stage a part of a folder": any(each and not each.part.is_whole for each in workload.identities),
    }
    for wish, wished in wishes.items():
        if wished:
            raise refusal(service, wish, workload.pipeline.reference)


def declared_outputs(request: Request, inputs: Sequence[Input]) -> tuple[Output, ...]:
    """Return the outputs of the tool. Raises `UsageError` for values without a command line."""
    workload = request.workload
    paths: dict[str, str | list[str]] = {}
    for identifier, value in workload.invocation.file_inputs():
        names = [each.name for each in inputs if each.id == identifier]
        paths[identifier] = names[0] if isinstance(value, str) else names
    line = build_command_line(workload.pipeline, workload.invocation, paths=paths, work_folder=".")
    return tuple(Output(o.id, o.path, o.optional, o.is_list, o.is_pattern) for o in line.outputs)


def submit_to_service(session: SiteSession, host: ServiceHost, request: Request, run: Run) -> Run:
    """Copy the inputs to the service, and create the job; the caller holds the run's lock."""
    workload, on_event = request.workload, session.on_event
    inputs = [
        each if each.in_place else replace(each, source=_copy_input(host, location, each.name, on_event))
        for each, location in zip(workload.inputs, workload.locations, strict=True)
    ]
    tool = ToolRequest(
        workload.pipeline,
        _values_with_references(workload.invocation, inputs),
        tuple(dict.fromkeys(each.source for each in inputs)),
    )
    content = host.service.tool_job(tool, on_event)
    if run.state is State.PREPARED:
        folder = FOLDER + run.id.encode("ascii")
        run = session.runs.note(run.id, "staged", path_fields(folder, "folder"))
    # a service has no files of a run before its job exists
    return submit_parts(session, run, [run_part(run, [json.dumps(content, sort_keys=True)])])


def _copy_input(host: ServiceHost, location: Location, name: str, on_event: Listener) -> str:
    """Copy an input from elsewhere to the service, unless it is there, and return its reference."""
    folder = host.service.input_folder()
    raw = name.encode("utf-8", "surrogateescape")
    receipt = pull_files("stage", location.parent, folder, [raw], SaveOptions(), on_event)
    if receipt.exit is not Exit.DONE:
        raise IncompleteError(
            "not-staged",
            f"the input could not be copied to {folder.text}",
            subject=location.text,
            hint=if_offered("history", f"hibali history show {receipt.id}"),
        )
    return host.service.find_input(folder.child(raw)).reference


def _values_with_references(invocation: Invocation, inputs: Sequence[Input]) -> Mapping[str, Any]:
    """Return the values of the invocation, with the references of inputs in place of their paths."""
    values = dict(invocation.values)
    for identifier, value in invocation.file_inputs():
        found = [each.source for each in inputs if each.id == identifier]
        values[identifier] = found[0] if isinstance(value, str) else found
    return values
