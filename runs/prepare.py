"""Prepare a run without contacting its site: job script, command file, inputs, outputs and submission."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hibali.errors import UsageError
from registry.command_line import CommandLine, build_command_line
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from runs.containers.base import Bind, Started, Task, check_environment, quoted, read_options
from runs.fast_storage import check_fast
from runs.model import Input, Output
from runs.request import Request
from runs.resources import DecidedResources
from runs.schedulers.base import Job, Resources, add_to_first_component
from runs.script import (
    REQUIRED_SCRIPT,
    ContainerPaths,
    guard_lines,
    job_script,
    required_script,
    start_script,
    with_proxy,
)

_NO_IMAGE = Started("")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The files that a run needs at its site, and the command that submits it; paths at the site as text.

    The text `command` is written to `command_path`. `directives` are the comment lines of the job script for the scheduler. `fast` is the
    script that copies inputs to fast storage, `required` the one that checks outputs after the tool; both may be "".
    """

    run: str
    folder: str
    job_script: str
    start: str
    command: str
    command_path: str
    fast: str
    required: str
    configuration_files: Mapping[str, str]
    copies: tuple[Bind, ...]
    outputs: tuple[Output, ...]
    submit: tuple[str, ...]
    resources: DecidedResources
    directives: tuple[str, ...]

    def files(self) -> dict[str, str]:
        """Return the files that the job script needs, by path below the folder; `start` comes last."""
        found = self.shown_files()
        found[self.command_path.removeprefix(f"{self.folder}/")] = found.pop("command")
        return {**found, "start": found.pop("start")}

    def shown_files(self) -> dict[str, str]:
        """Return the same files as a dry run shows them: the command file has the same name with every container."""
        found = {"start": self.start, "command": self.command}
        if self.fast:
            found["fast.sh"] = self.fast
        if self.required:
            found[REQUIRED_SCRIPT] = self.required
        return found | {f"work/{path}": text for path, text in self.configuration_files.items()}


def prepare(
    request: Request,
    inputs: Sequence[Input],
    run_id: str,
    folder: str,
    *,
    image: Started = _NO_IMAGE,
    number: int = 0,
) -> Prepared:
    """Prepare everything of a run that does not require a query of its site.

    Args:
        request: The request of a single run, or of one task of a sweep.
        inputs: The inputs with their paths at the site.
        run_id: The id of the run.
        folder: The absolute folder of the run, or of the task, at the site.
        image: The image to start.
        number: The number of the task, 0 for a single run.

    Raises:
        UsageError: The descriptor or the configuration requests something impossible.
        RefusedError: The site does not have the resources.
    """
    workload, compute, job = request.workload, request.compute, request.job
    scheduler, container = compute.scheduler, compute.container
    decided = request.decide_resources()
    resources = decided.resources
    if job.fast.is_used:
        check_fast(container)
    fast_script = job.fast.script(inputs)
    inputs = job.fast.inputs_in(folder, inputs)
    paths = ContainerPaths(folder, container)
    work = job.fast.work_in(folder)
    sees_work = _seen_work(workload.pipeline, paths.work) if container.isolates else work
    line = build_command_line(
        workload.pipeline,
        workload.invocation,
        paths=_input_paths(workload.invocation, inputs, paths),
        work_folder=sees_work,
    )
    gpus = compute.site.gpus
    task = Task(
        run=f"{run_id}-{number}" if number else run_id,
        command=paths.command,
        sees_command=paths.sees_command,
        shell=line.shell,
        work=work,
        sees_work=sees_work,
        environment=line.environment,
        binds=paths.binds(inputs),
        image=image.image,
        entrypoint=image.entrypoint,
        image_environment=image.environment,
        tasks=resources.tasks or 1,
        launched=scheduler.variables.launched,
        gpus=gpus.kind if gpus is not None and resources.gpus else "",
        launcher=compute.find_launcher(resources),
        own=compute.site.container.own,
    )
    if container.isolates:
        task = _with_image_options(workload.pipeline, line, task)
    check_environment(task.environment, scheduler.variables.prefixes)
    if job.proxy:
        task = with_proxy(task, paths, container)
    start = container.start(task)
    if not container.launcher:
        start = _with_launcher(task.launcher, start)
    guard = guard_lines(folder, job.dependencies.needs)
    outputs = tuple(Output(o.id, o.path, o.optional, o.is_list, o.is_pattern) for o in line.outputs)
    directives = add_to_first_component(
        scheduler.directives(resources), job.fast.lines(scheduler, resources.seconds)
    )
    return Prepared(
        run=run_id,
        folder=folder,
        job_script=job_script(run_id, directives, scheduler.variables),
        start=start_script(compute.settings.prologue, guard + start),
        command=line.script if line.script.endswith("\n") else line.script + "\n",
        command_path=paths.command,
        fast=fast_script,
        required=required_script(outputs, several_nodes=(resources.tasks or 1) > 1),
        configuration_files={each.path: each.content for each in line.configuration_files},
        copies=() if container.binds_inputs else paths.copies(inputs),
        outputs=outputs,
        submit=_submit_argv(request, run_id, folder, resources),
        resources=decided,
        directives=directives,
    )


def known_inputs(request: Request) -> list[Input]:
    """Return the inputs with their paths, as far as they are known without contacting the site."""
    workload = request.workload
    return [
        each
        if each.in_place
        else replace(each, in_place=identity is None, source=location.path if identity is None else "")
        for each, location, identity in zip(
            workload.inputs, workload.locations, workload.identities, strict=True
        )
    ]


def image_placeholder(request: Request) -> Started:
    """Return the image that a dry run shows."""
    return Started("IMAGE" if request.compute.container.isolates else "")


def _submit_argv(request: Request, run_id: str, folder: str, resources: Resources) -> tuple[str, ...]:
    # repeat the id, for users who rename jobs; a comment of the site or of the command line takes precedence
    commented = any(text.startswith("--comment") for text in resources.directives)
    dependencies = request.job.dependencies
    job = Job(
        run_id,
        f"{folder}/job.sh",
        after=dependencies.jobs,
        hold=dependencies.hold,
        comment="" if commented else run_id,
    )
    return request.compute.scheduler.submit_argv(job)


def _with_launcher(launcher: Sequence[str], start: str) -> str:
    """Return the command line that starts `start` for each of several MPI tasks."""
    return f"exec {quoted([*launcher, '/bin/sh', '-c', start])}" if launcher else start


def _input_paths(
    invocation: Invocation, inputs: Sequence[Input], paths: ContainerPaths
) -> dict[str, str | list[str]]:
    """Return the paths that the tool sees, by the id of the input."""
    found: dict[str, str | list[str]] = {}
    for identifier, value in invocation.file_inputs():
        seen = [
            posixpath.join(paths.input(each), each.below).rstrip("/") or "/"
            for each in inputs
            if each.id == identifier
        ]
        found[identifier] = seen[0] if isinstance(value, str) else seen
    return found


def _seen_work(pipeline: Pipeline, work: str) -> str:
    """Return the folder of the image in which the tool starts, by default `work`."""
    wanted = pipeline.container.working_directory if pipeline.container else ""
    if not wanted:
        return work
    # normpath keeps two leading slashes (POSIX)
    if (
        not wanted.startswith("/")
        or wanted.startswith("//")
        or wanted == "/"
        or posixpath.normpath(wanted) != wanted
    ):
        raise UsageError(
            "bad-working-directory",
            "the container's working directory must be a plain absolute path",
            subject=ascii(wanted),
            hint="Correct `working-directory` in the descriptor.",
        )
    return wanted


def _with_image_options(pipeline: Pipeline, line: CommandLine, task: Task) -> Task:
    """Apply the descriptor's container options: variables, shared memory, the image's entry point."""
    environment, memory = read_options(pipeline.container, task.sees_work)
    argv = None
    if pipeline.container is not None and pipeline.container.entrypoint:
        argv = _split_command(line.script, pipeline.reference)
    return replace(task, environment={**environment, **line.environment}, memory=memory, argv=argv)


def _split_command(script: str, reference: str) -> tuple[str, ...]:
    """Split a command line into arguments for an entry point; raises `UsageError` if it needs a shell."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        argv = tuple(lexer)
    except ValueError:
        argv = (";",)
    if any(set(argument) <= set("();<>|&") for argument in argv if argument):
        raise UsageError(
            "bad-entrypoint",
            "the image's entry point takes plain arguments, but this command line needs a shell",
            subject=reference,
            hint="Set `entrypoint` to false in the descriptor.",
        )
    return argv
