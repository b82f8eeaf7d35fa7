"""The files a run leaves and the configuration files it is given, by name, inside the work folder."""

from __future__ import annotations

import glob
import posixpath
import re
from dataclasses import dataclass
from typing import Any

from hibali.errors import UsageError
from hibali.text import printable
from registry.condition import DEFAULT, Condition, read_condition
from registry.pipeline import Input, OutputFile
from registry.template import Key, Scene, fill_template, name_of_file, text_of_input

_WILDCARD = re.compile(r"[*?\[]")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SAFE = re.compile(r"[A-Za-z0-9_./:=@%+,-]*")
_SCRIPT_ENDINGS = (
    ".sh",
    ".bash",
    ".csh",
    ".tcsh",
    ".zsh",
    ".py",
    ".r",
    ".m",
    ".pl",
    ".rb",
    ".tcl",
    ".jl",
    ".js",
    ".lua",
)


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """A file the run should leave: `path` is relative to the work folder, normalised, never climbing.

    With `is_pattern` it is a glob in which only the author's wildcards are active (values are escaped);
    `is_list` says that it may match several files.
    """

    id: str
    path: str
    optional: bool
    is_list: bool
    is_pattern: bool


@dataclass(frozen=True, slots=True)
class ConfigurationFile:
    """A file to be written into the work folder before the command starts; `path` as in `ExpectedOutput`."""

    id: str
    path: str
    content: str


def is_left(scene: Scene, output: OutputFile) -> bool:
    """Whether there is such an output under these answers; raises `UsageError` for a condition that cannot be judged."""
    return _path_template(scene, output, frozenset()) is not None


def output_text(scene: Scene, output: OutputFile) -> str:
    """The path of an output as the tool is told it."""
    return _absolute(scene, output, _joined(_fill_path(scene, output, frozenset())))


def expect_output(scene: Scene, output: OutputFile) -> ExpectedOutput:
    """Where the output will be; raises `UsageError` when that is not inside the work folder."""
    pieces = list(_fill_path(scene, output, frozenset()))
    is_pattern = any(_WILDCARD.search(text) for text, is_value, _ in pieces if not is_value)
    text = "".join(glob.escape(text) if is_value and is_pattern else text for text, is_value, _ in pieces)
    return ExpectedOutput(
        output.id, _inside(scene, text, output.id), output.optional, output.is_list, is_pattern
    )


def write_configuration(scene: Scene, output: OutputFile) -> ConfigurationFile:
    """The content of a configuration file; a line that names an absent input is left empty, as the reference does.

    Values stand there as they are: the file is data. In a script they may only have characters that mean nothing.
    Raises `UsageError`.
    """
    path = _inside(scene, _joined(_fill_path(scene, output, frozenset())), output.id)
    is_script = output.file_template[0].startswith("#!") or path.lower().endswith(_SCRIPT_ENDINGS)
    lines = []
    for line in output.file_template:
        pieces = list(fill_template(line, scene.pipeline, lambda key, _: _plain_text(scene, key, output)))
        for text, is_value, _ in pieces:
            if is_value:
                _check_configured(text, output.id, is_script=is_script)
        lines.append("".join(text for text, _, _ in pieces) if all(there for _, _, there in pieces) else "")
    return ConfigurationFile(output.id, path, "\n".join(lines))


def plain_value(scene: Scene, key: Key) -> str | None:
    """What a key stands for as plain text; None where it is absent."""
    owner = scene.find_owner(key)
    if owner is None:
        return None
    if isinstance(owner, Input):
        return text_of_input(scene, owner, ())
    return output_text(scene, owner) if is_left(scene, owner) else None


def _plain_text(scene: Scene, key: Key, output: OutputFile) -> str | None:
    owner = scene.find_owner(key)
    if isinstance(owner, Input):
        return text_of_input(scene, owner, output.stripped_extensions)
    return None if owner is None or not is_left(scene, owner) else output_text(scene, owner)


def _joined(pieces: list[tuple[str, bool, bool]]) -> str:
    return "".join(text for text, _, _ in pieces)


def _absolute(scene: Scene, output: OutputFile, text: str) -> str:
    """The path of an output as others are told it: absolute where its author wants that."""
    if not output.uses_absolute_path or posixpath.isabs(text):
        return text
    if scene.work_folder is None:
        raise UsageError(
            "work-folder-unknown",
            "this output needs an absolute path, and no work folder is known",
            about=output.id,
        )
    return posixpath.normpath(posixpath.join(scene.work_folder, text))


def _path_template(scene: Scene, output: OutputFile, seen: frozenset[str]) -> str | None:
    """The template that counts; None where none of the conditions holds, and for an output that asks about itself."""
    if not output.conditions:
        return output.path_template
    known = scene.pipeline.ids
    for text, template in output.conditions:
        if text == DEFAULT:
            return template
        condition = read_condition(text, known)
        if condition.holds(_answers(scene, condition, seen | {output.id})):
            return template
    return None


def _answers(scene: Scene, condition: Condition, seen: frozenset[str]) -> dict[str, Any]:
    """What a condition may ask about: inputs as they were answered, other outputs by their paths."""
    asked = [each for each in scene.pipeline.outputs if each.id in condition.ids and each.id not in seen]
    paths = {
        each.id: _absolute(scene, each, _joined(_fill_path(scene, each, seen)))
        for each in asked
        if _path_template(scene, each, seen) is not None
    }
    return {**paths, **scene.values}


def _fill_path(scene: Scene, output: OutputFile, seen: frozenset[str]) -> list[tuple[str, bool, bool]]:
    """The pieces of a path-template. An absent key stays in it, as the reference leaves it."""

    def text_of(key: Key, at_beginning: bool) -> str | None:  # noqa: FBT001  # the signature is fill_template's
        owner = scene.find_owner(key)
        if isinstance(owner, Input):
            if scene.is_read_only(owner):
                return text_of_input(scene, owner, output.stripped_extensions, only_names=True)
            text = text_of_input(scene, owner, output.stripped_extensions)
            return name_of_file(text) if owner.kind == "File" and not at_beginning else text
        if owner is None or owner.id in seen or owner.id == output.id:
            return None
        if _path_template(scene, owner, seen | {output.id}) is None:
            return None
        return _absolute(scene, owner, _joined(_fill_path(scene, owner, seen | {output.id})))

    template = _path_template(scene, output, seen)
    return list(fill_template(template or "", scene.pipeline, text_of))


def _inside(scene: Scene, path: str, about: str) -> str:
    """The path relative to the work folder, normalised; raises `UsageError` when it leads elsewhere."""
    normal = posixpath.normpath(path) if path else ""
    folder = scene.work_folder
    if folder and posixpath.isabs(normal):
        normal = posixpath.relpath(normal, folder)
    if not normal or normal == ".." or normal.startswith(("../", "/")) or "\0" in normal:
        raise UsageError(
            "output-outside-work-folder",
            f"this output would be written to {printable(path) or 'an empty path'}, outside the run's work folder",
            about=about,
            hint="Give a relative path that stays inside: what lies elsewhere cannot be collected.",
        )
    return normal


def _check_configured(text: str, about: str, *, is_script: bool) -> None:
    if is_script and not _SAFE.fullmatch(text):
        raise UsageError(
            "unquotable-value",
            "a configuration file that is a script takes only values of ASCII letters, digits and _./:=@%+,-",
            about=about,
            hint="Give another value.",
        )
    if _CONTROL.search(text):
        raise UsageError(
            "unquotable-value",
            "a value with a control character would start a new line of this configuration file",
            about=about,
            hint="Give another value.",
        )
