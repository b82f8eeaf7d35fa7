"""Launch a run at a job service that has the tool installed: its inputs become data of the service, and its job is created once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hibali.errors import Exit, IncompleteError
from hibali.events import Listener
from hibali.locations import Location
from hibali.text import path_fields
from registry.command_line import build_command_line
from registry.invocation import Invocation
from runs.collect import pull_files
from runs.model import Input, Output, Run, State
from runs.queue_limits import run_part, submit_parts
from runs.request import Request
from runs.services.base import FOLDER, ServiceHost, ToolRequest, refusal
from runs.site_session import SiteSession
from transfers.engine.request import SaveOptions


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
            hint=f"hibali history show {receipt.id}",
        )
    return host.service.find_input(folder.child(raw)).reference


def _values_with_references(invocation: Invocation, inputs: Sequence[Input]) -> Mapping[str, Any]:
    """Return the values of the invocation, with the references of inputs in place of their paths."""
    values = dict(invocation.values)
    for identifier, value in invocation.file_inputs():
        found = [each.source for each in inputs if each.id == identifier]
        values[identifier] = found[0] if isinstance(value, str) else found
    return values
