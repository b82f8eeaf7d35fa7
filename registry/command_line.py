"""The command line of a checked invocation: a pure function from values to a shell script and what it will leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hibali.errors import RefusedError, UsageError
from hibali.text import printable
from registry.condition import DEFAULT, read_condition
from registry.environment import is_safe_variable
from registry.invocation import Invocation
from registry.outputs import (
    ConfigurationFile,
    ExpectedOutput,
    expect_output,
    is_left,
    output_text,
    plain_value,
    write_configuration,
)
from registry.pipeline import Input, OutputFile, Pipeline
from registry.shell_text import ShellText, read_shell
from registry.template import Key, Paths, Scene, fill_template, make_scene, split_template

__all__ = [
    "CommandLine",
    "ConfigurationFile",
    "ExpectedOutput",
    "build_command_line",
    "refuse_unrunnable",
    "render_script",
]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What to run: `script` is text for `shell` (`sh` or `bash`), started in the work folder with `environment`."""

    script: str
    shell: str
    environment: Mapping[str, str]
    outputs: tuple[ExpectedOutput, ...]
    configuration_files: tuple[ConfigurationFile, ...]


def build_command_line(
    pipeline: Pipeline,
    invocation: Invocation,
    *,
    paths: Paths | None = None,
    work_folder: str | None = None,
) -> CommandLine:
    """The command line, environment, configuration files and expected outputs.

    `paths` replaces File answers by input id with the absolute paths the tool will see (a list for a list input);
    `work_folder` is the absolute path the tool will see as its working directory: needed only where the
    pipeline wants absolute output paths. Raises `UsageError` for a value that cannot be quoted where the author put it,
    an output outside the work folder, a condition that cannot be judged, and other shells; `RefusedError` for a
    variable that must not be set (S10).
    """
    refuse_unrunnable(pipeline)
    scene = make_scene(pipeline, invocation, paths, work_folder)
    script = render_script(pipeline, invocation, paths=paths, work_folder=work_folder)
    environment = _build_environment(scene)
    if "\0" in script or any("\0" in value for value in environment.values()):
        raise UsageError(
            "nul-in-command", "the pipeline's command holds a NUL character", about=pipeline.reference
        )
    return CommandLine(
        script=script,
        shell=read_shell(pipeline.shell),
        environment=environment,
        outputs=tuple(
            expect_output(scene, each)
            for each in pipeline.outputs
            if not each.file_template and is_left(scene, each)
        ),
        configuration_files=tuple(
            write_configuration(scene, each)
            for each in pipeline.outputs
            if each.file_template and is_left(scene, each)
        ),
    )


def refuse_unrunnable(pipeline: Pipeline) -> None:
    """Raise when no invocation of this pipeline can be run: what it asks for is not safe, or not known here."""
    for output in pipeline.outputs:
        for condition, _ in output.conditions:
            if condition != DEFAULT:
                read_condition(condition, pipeline.ids)
    read_shell(pipeline.shell)
    for variable in pipeline.environment:
        _check_environment_name(variable.name)


def render_script(
    pipeline: Pipeline,
    invocation: Invocation,
    *,
    paths: Paths | None = None,
    work_folder: str | None = None,
) -> str:
    """The shell text alone; raises `UsageError` for a value that cannot be quoted where the author put it."""
    scene = make_scene(pipeline, invocation, paths, work_folder)
    script = ShellText()
    pieces = list(split_template(pipeline.command_template, pipeline))
    for number, piece in enumerate(pieces):
        if isinstance(piece, str):
            script.add_author_text(piece)
        else:
            following = pieces[number + 1] if number + 1 < len(pieces) else ""
            _add_key(script, scene, piece, following[:1] if isinstance(following, str) else "")
    return str(script)


def _add_key(script: ShellText, scene: Scene, key: Key, following: str) -> None:
    owner = scene.find_owner(key)
    if isinstance(owner, OutputFile) and is_left(scene, owner):
        script.add_author_text(owner.flag + owner.flag_separator if owner.flag else "")
        script.add_value(output_text(scene, owner), owner.id, before=following)
    elif isinstance(owner, Input) and _stands_for_something(scene, owner):
        _add_input(script, scene, owner, following)
    else:
        script.drop_space()


def _stands_for_something(scene: Scene, question: Input) -> bool:
    answer = scene.values[question.id]
    return answer is not False and (answer != [] or bool(question.flag))


def _add_input(script: ShellText, scene: Scene, question: Input, following: str) -> None:
    script.add_author_text(question.flag)
    if question.kind == "Flag":
        return
    script.add_author_text(question.flag_separator if question.flag else "")
    for number, item in enumerate(scene.items(question)):
        if number:
            script.add_separator(question.list_separator, question.id)
        script.add_value(item, question.id, before=following)


def _build_environment(scene: Scene) -> dict[str, str]:
    """Variables by name. One whose value is nothing but the key of an absent input is not set."""
    environment = {}
    for variable in scene.pipeline.environment:
        pieces = list(fill_template(variable.value, scene.pipeline, lambda key, _: plain_value(scene, key)))
        if len(pieces) == 1 and not pieces[0][2]:
            continue
        environment[variable.name] = "".join(text for text, _, there in pieces if there)
    return environment


def _check_environment_name(name: str) -> None:
    if not is_safe_variable(name):
        raise RefusedError(
            "unsafe-environment-variable",
            "this pipeline sets a variable that changes how programs are started, or whose name is none",
            about=printable(name),
            hint="Ask the pipeline's author for another name.",
        )
