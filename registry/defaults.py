"""Decide which defaults of a pipeline apply beside the answers that were given."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from registry.pipeline import Input, Pipeline


def add_defaults(pipeline: Pipeline, values: Mapping[str, Any]) -> dict[str, Any]:
    """The answers, with the defaults that apply.

    `null` withdraws the default of an optional input. An answer outranks a default that it excludes, or that excludes it; of two
    defaults the one that disables the other applies, else the first. A required input without an answer always has its default.
    """
    return _decide(pipeline, values)[0]


def find_withdrawn(pipeline: Pipeline, values: Mapping[str, Any]) -> dict[str, str]:
    """The inputs whose default does not apply, and for each the input that excludes it."""
    return _decide(pipeline, values)[1]


def is_active(pipeline: Pipeline, identifier: str, answers: Mapping[str, Any]) -> bool:
    """Whether it is answered; for a flag: set. A group is active when one of its members is."""
    group = pipeline.find_group(identifier)
    if group is not None and pipeline.find_input(identifier) is None:
        return any(is_active(pipeline, member, answers) for member in group.members)
    found = pipeline.find_input(identifier)
    if found is not None and found.kind == "Flag":
        return answers.get(identifier) is True
    return identifier in answers


def is_in_image(pipeline: Pipeline, question: Input, answer: Any) -> bool:
    """Whether this answer to a File input is a file of the pipeline's image: its absolute default.

    An answer that repeats the default means the same file.
    """
    if question.kind != "File" or pipeline.container is None or answer != question.default:
        return False
    paths = answer if isinstance(answer, list) else [answer]
    return bool(paths) and all(isinstance(path, str) and path.startswith("/") for path in paths)


def _decide(pipeline: Pipeline, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    with_default = [each for each in pipeline.inputs if each.default is not None]
    null = {each.id for each in with_default if each.id in values and values[each.id] is None}
    answers = {identifier: value for identifier, value in values.items() if identifier not in null}
    added = {each.id: each.default for each in with_default if each.id not in answers and not each.optional}
    waiting = [each for each in with_default if each.id not in values and each.optional]
    related = _find_related(pipeline)
    added |= {each.id: each.default for each in waiting if each.id not in related}
    waiting = [each for each in waiting if each.id in related]
    groups = [frozenset(each.members) for each in pipeline.groups if each.mutually_exclusive]
    known = {**answers, **added}
    applied = [(each, known[each.id]) for each in pipeline.inputs if each.id in related and each.id in known]
    withdrawn: dict[str, str] = {}
    while True:
        for other, answer in applied:
            for each in list(waiting):
                if _exclude(each, each.default, other, answer, groups):
                    withdrawn[each.id] = other.id
                    waiting.remove(each)
        if not waiting:
            break
        first = next((each for each in waiting if not _is_disabled(each, waiting)), waiting[0])
        waiting.remove(first)
        added[first.id] = first.default
        applied = [(first, first.default)]
    for each in pipeline.inputs:
        if each.id in added:
            answers[each.id] = copy.deepcopy(added[each.id])
    return answers, withdrawn


def _find_related(pipeline: Pipeline) -> set[str]:
    """The inputs that exclude others, or that others exclude."""
    found: set[str] = set()
    for each in pipeline.inputs:
        disabled = {*each.disables, *(other for named in each.value_disables.values() for other in named)}
        if disabled:
            found |= {each.id, *disabled}
    return found.union(*(group.members for group in pipeline.groups if group.mutually_exclusive))


def _exclude(
    one: Input, one_answer: Any, other: Input, other_answer: Any, groups: Sequence[frozenset[str]]
) -> bool:
    """Whether only one of two answered inputs can be given; a flag that is off excludes nothing."""
    if one.id == other.id or _is_off(one, one_answer) or _is_off(other, other_answer):
        return False
    return (
        disables(one, one_answer, other.id)
        or disables(other, other_answer, one.id)
        or any({one.id, other.id} <= group for group in groups)
    )


def _is_off(question: Input, answer: Any) -> bool:
    return question.kind == "Flag" and answer is not True


def _is_disabled(question: Input, others: Sequence[Input]) -> bool:
    return any(
        disables(other, other.default, question.id)
        for other in others
        if other is not question and not _is_off(other, other.default)
    )


def disables(question: Input, answer: Any, identifier: str) -> bool:
    """Whether this answer to a question disables the input of that id."""
    values = answer if isinstance(answer, list) else [answer]
    return identifier in question.disables or any(
        identifier in question.value_disables.get(str(value), ()) for value in values
    )
