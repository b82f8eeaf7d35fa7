"""Templates of a descriptor: scanned once for value-keys; what is put in is never scanned again (S8)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from registry.defaults import is_in_image
from registry.invocation import Invocation
from registry.pipeline import Input, OutputFile, Pipeline

Paths = Mapping[str, str | list[str]]


@dataclass(frozen=True, slots=True)
class Key:
    """A value-key found in a template."""

    text: str


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything a template can name: the pipeline, the checked answers and where the files will be."""

    pipeline: Pipeline
    values: Mapping[str, Any]
    paths: Paths
    work_folder: str | None

    def find_owner(self, key: Key) -> Input | OutputFile | None:
        """Whose value the key stands for: of its inputs the first that says something, else an output; None: absent."""
        answered = [
            each for each in self.pipeline.inputs if each.value_key == key.text and each.id in self.values
        ]
        if answered:
            return next((each for each in answered if self.values[each.id] is not False), answered[0])
        return next((each for each in self.pipeline.outputs if each.value_key == key.text), None)

    def is_read_only(self, question: Input) -> bool:
        """Whether the answer is a file beside which the tool can write nothing: hibali staged it, or it is in the image."""
        in_image = is_in_image(self.pipeline, question, self.values[question.id])
        return question.id in self.paths or in_image

    def items(self, question: Input) -> list[str]:
        """The answer as texts, one for a single value; a File is where the tool will find it."""
        answer = self.paths.get(question.id, self.values[question.id])
        return [str(value) for value in answer] if isinstance(answer, list) else [str(answer)]


def make_scene(
    pipeline: Pipeline, invocation: Invocation, paths: Paths | None, work_folder: str | None
) -> Scene:
    """The scene of one run; `paths` names only inputs that are answered."""
    return Scene(pipeline, invocation.values, paths or {}, work_folder)


def split_template(template: str, pipeline: Pipeline) -> Iterator[str | Key]:
    """The template's own text and the keys in it, from left to right; of two keys at one place the longer one."""
    keys = {each.value_key for each in pipeline.inputs} | {each.value_key for each in pipeline.outputs}
    keys.discard("")
    if not keys:
        yield template
        return
    pattern = re.compile("|".join(re.escape(key) for key in sorted(keys, key=len, reverse=True)))
    end = 0
    for found in pattern.finditer(template):
        if found.start() > end:
            yield template[end : found.start()]
        yield Key(found.group())
        end = found.end()
    if end < len(template):
        yield template[end:]


def fill_template(
    template: str, pipeline: Pipeline, text_of: Callable[[Key, bool], str | None]
) -> Iterator[tuple[str, bool, bool]]:
    """Pieces of a filled template: the text, whether it is a value, and whether that value was there.

    `text_of` gets the key and whether its first place is the very beginning; where it returns None, the key itself stays.
    """
    first: dict[str, str | None] = {}
    at_beginning = True
    for piece in split_template(template, pipeline):
        if isinstance(piece, str):
            at_beginning = False
            yield piece, False, True
            continue
        if piece.text not in first:
            first[piece.text] = text_of(piece, at_beginning)
        text = first[piece.text]
        at_beginning = at_beginning and text == ""
        yield (piece.text, True, False) if text is None else (text, True, True)


def text_of_input(
    scene: Scene, question: Input, stripped: tuple[str, ...], *, only_names: bool = False
) -> str:
    """An answer as plain text, for paths, files and the environment: no flags, no quotes; extensions taken away.

    With `only_names` each path stands for its last component.
    """
    items = scene.items(question)
    if only_names:
        items = [name_of_file(each.rstrip("/")) for each in items]
    text = question.list_separator.join(items)
    if question.kind in {"File", "String"}:
        for extension in stripped:
            text = text.replace(extension, "") if extension else text
    return text


def name_of_file(text: str) -> str:
    """The last component of a path."""
    return posixpath.basename(text)
