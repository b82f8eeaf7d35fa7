"""Prepare a run: job script, command file, inputs, outputs and submission; pure."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hibali.config.model import Gpus, SchedulerSettings
from hibali.errors import UsageError
from registry.command_line import CommandLine, build_command_line
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from runs.containers.base import Bind, Container, Started, Task, check_environment, quoted, read_options
from runs.fast_storage import NOTHING_FAST, Fast, check_fast
from runs.model import Input, Output
from runs.resources import DecidedResources, check_gpus, decide_resources, find_launcher
from runs.schedulers.base import Job, Resources, Scheduler
from runs.script import Inside, Waiting, guard_lines, job_script, required_script, start_script, with_proxy


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that is put at the site, and what is then said to the scheduler; paths there as text.

    `command_path` is where the text `command` goes, `asked` what the job asks for, `directives` are how the job script says so to
    the scheduler; `fast` is what copies inputs to fast storage in the job, "" for nothing, `required` what looks for outputs after it.
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
    asked: DecidedResources
    directives: tuple[str, ...]


def prepare(
    pipeline: Pipeline,
    invocation: Invocation,
    inputs: Sequence[Input],
    *,
    run: str,
    folder: str,
    settings: SchedulerSettings,
    scheduler: Scheduler,
    container: Container,
    image: Started | None = None,
    wanted: Resources | None = None,
    gpus: Gpus | None = None,
    site: str = "",
    number: int = 0,
    fast: Fast = NOTHING_FAST,
    waiting: Waiting | None = None,
    proxy: bool = False,
    own: Any = None,
) -> Prepared:
    """Decide all of it.

    `folder` is the run's folder at the site, absolute, or that of the task of this `number`; `image` the one to start. `wanted` is
    what the command line asks for, `gpus` what the site called `site` has of them, `waiting` what the job waits for; `proxy` says that it
    finds one for GSI in its folder, and `own` are the settings of the container alone. Raises
    `UsageError` or `RefusedError` for what a descriptor or the configuration may not ask.
    """
    waiting = waiting or Waiting()
    image = image or Started("")
    asked = decide_resources(pipeline.resources, settings, wanted)
    check_gpus(asked.resources, gpus, container, site)
    if fast.is_used:
        check_fast(container)
    copying = fast.script(inputs)
    work, inputs = fast.work_in(folder), fast.inputs_in(folder, inputs)
    inside = Inside(folder, container)
    sees_work = _seen_work(pipeline, inside.work) if container.isolates else work
    seen = {each.number: inside.input(each) for each in inputs}
    line = build_command_line(
        pipeline, invocation, paths=_paths(invocation, inputs, seen), work_folder=sees_work
    )
    directives = (*scheduler.directives(asked.resources), *fast.lines(scheduler, asked.resources.seconds))
    task = Task(
        run=f"{run}-{number}" if number else run,
        command=inside.command,
        sees_command=inside.sees_command,
        shell=line.shell,
        work=work,
        sees_work=sees_work,
        environment=line.environment,
        binds=inside.binds(inputs),
        image=image.image,
        entrypoint=image.entrypoint,
        image_environment=image.environment,
        tasks=asked.resources.tasks or 1,
        gpus=gpus.kind if gpus is not None and asked.resources.gpus else "",
        own=own,
    )
    task = _with_image_options(pipeline, line, task) if container.isolates else task
    check_environment(task.environment)
    if proxy:
        task = with_proxy(task, inside, container)
    outputs = tuple(Output(o.id, o.path, o.optional, o.is_list, o.is_pattern) for o in line.outputs)
    return Prepared(
        run=run,
        folder=folder,
        job_script=job_script(run, directives, scheduler.variables),
        start=start_script(
            settings.prologue,
            guard_lines(folder, waiting.needs)
            + _launched(
                find_launcher(asked.resources, settings.mpi or scheduler.launcher), container.start(task)
            ),
        ),
        command=line.script if line.script.endswith("\n") else line.script + "\n",
        command_path=inside.command,
        fast=copying,
        required=required_script(outputs, several_nodes=(asked.resources.tasks or 1) > 1),
        configuration_files={each.path: each.content for each in line.configuration_files},
        copies=() if container.binds_inputs else inside.copies(inputs),
        outputs=outputs,
        submit=scheduler.submit_words(
            Job(
                run,
                f"{folder}/job.sh",
                after=waiting.jobs,
                hold=waiting.hold,
                comment=_comment(run, asked.resources),
            )
        ),
        asked=asked,
        directives=directives,
    )


def _comment(run: str, resources: Resources) -> str:
    """The run's id once more, for whoever renames jobs; none where the site or the line says something there."""
    return "" if any(text.startswith("--comment") for text in resources.directives) else run


def _launched(launcher: Sequence[str], start: str) -> str:
    """The line that starts each of several tasks as `start` would start the only one."""
    return f"exec {quoted([*launcher, '/bin/sh', '-c', start])}" if launcher else start


def _paths(
    invocation: Invocation, inputs: Sequence[Input], seen: Mapping[int, str]
) -> dict[str, str | list[str]]:
    found: dict[str, str | list[str]] = {}
    for identifier, answer in invocation.file_inputs():
        paths = [seen[each.number] for each in inputs if each.id == identifier]
        found[identifier] = paths[0] if isinstance(answer, str) else paths
    return found


def _seen_work(pipeline: Pipeline, work: str) -> str:
    """The folder of the image where the author wants the tool to start, else the same as outside."""
    wanted = pipeline.container.working_directory if pipeline.container else ""
    if not wanted:
        return work
    if (
        not wanted.startswith("/")
        or posixpath.normpath(wanted) != wanted
        or wanted.count("/") < 1
        or wanted == "/"
    ):
        raise UsageError(
            "bad-working-directory",
            "the container's working directory must be a plain absolute path",
            subject=ascii(wanted),
            hint="Correct `working-directory` in the descriptor.",
        )
    return wanted


def _with_image_options(pipeline: Pipeline, line: CommandLine, task: Task) -> Task:
    """What the descriptor says of its container: variables, shared memory, its own entry point."""
    environment, memory = read_options(pipeline.container, task.sees_work)
    words = None
    if pipeline.container is not None and pipeline.container.entrypoint:
        words = _plain_words(line.script, pipeline.reference)
    return replace(task, environment={**environment, **line.environment}, memory=memory, words=words)


def _plain_words(script: str, subject: str) -> tuple[str, ...]:
    """The words of a command without any shell; raises `UsageError` where it needs one."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = tuple(lexer)
    except ValueError:
        words = (";",)
    if any(set(word) <= set("();<>|&") for word in words if word):
        raise UsageError(
            "bad-entrypoint",
            "an image with an entry point takes plain words, and this command line needs a shell",
            subject=subject,
            hint="Set `entrypoint` to false in the descriptor.",
        )
    return words
