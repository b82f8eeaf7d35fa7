"""An invocation to start from: what has to be answered, or everything that can be, with values that pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hibali.errors import UsageError
from registry.answer import find_answer_problems
from registry.invocation import find_invocation_problems, find_needs
from registry.pipeline import Group, Input, Pipeline, Value

Answers = dict[str, Any]
_DEEPEST = 32  # inputs that require inputs that require inputs ...


def make_example(pipeline: Pipeline, *, complete: bool = False) -> Answers:
    """A valid invocation in the order of the inputs; with `complete` every input that can be answered beside the others.

    Raises `UsageError` where none was found: a descriptor may ask for what cannot be.
    """
    answers: Answers = {}
    for each in pipeline.inputs:
        if not each.optional or (each.default is not None and any(find_answer_problems(each, each.default))):
            answers = find_answer(pipeline, answers, each.id) or answers
    for group in pipeline.groups:
        if group.one_is_required and not _has_member(group, answers):
            answers = _answer_one_of(pipeline, answers, group.members) or answers
    answers = _repair_defaults(pipeline, answers)
    for each in pipeline.inputs if complete else ():
        if each.id not in answers:
            answers = _add_if_it_fits(pipeline, answers, each.id)
    problems = find_invocation_problems(pipeline, answers)
    if problems:
        raise UsageError(
            "no-example",
            "no invocation was found that satisfies this descriptor: "
            + "; ".join(str(each) for each in problems),
            about=pipeline.reference,
            hint=f"`hibali pipelines show {pipeline.reference}` lists what the inputs require and exclude.",
        )
    return {each.id: answers[each.id] for each in pipeline.inputs if each.id in answers}


def find_answer(
    pipeline: Pipeline, answers: Mapping[str, Any], identifier: str, depth: int = 0
) -> Answers | None:
    """The answers with this one and all that it requires, the first value that fits; None: there is no way."""
    question = pipeline.find_input(identifier)
    if question is None or depth > _DEEPEST:
        return None
    if identifier in answers:
        return dict(answers)
    for value in _example_values(question):
        found: Answers | None = {**answers, identifier: value}
        first = value[0] if isinstance(value, list) and value else value
        mates = [
            mate
            for group in pipeline.groups
            if group.all_or_none and identifier in group.members
            for mate in group.members
        ]
        for other in (*question.requires, *question.value_requires.get(str(first), ()), *mates):
            group = pipeline.find_group(other)
            members = group.members if group and not pipeline.find_input(other) else (other,)
            if found is not None and not any(found.get(member) is not None for member in members):
                found = _answer_one_of(pipeline, found, members, depth + 1)
        if found is not None and not _new_conflicts(pipeline, answers, found):
            return found
    return None


def _repair_defaults(pipeline: Pipeline, answers: Answers) -> Answers:
    """The answers with what the defaults need; a default that cannot apply in any invocation is withdrawn."""
    for _ in pipeline.inputs:
        need = next(iter(find_needs(pipeline, answers)), None)
        if need is None:
            break
        found = _answer_one_of(pipeline, answers, _inputs_of(pipeline, need.members))
        if found is None and not _is_applied_default(pipeline, answers, need.path):
            break
        answers = {**answers, need.path: None} if found is None else found
    for problem in find_invocation_problems(pipeline, answers):
        identifier = problem.path.partition("[")[0]
        if _is_applied_default(pipeline, answers, identifier):
            answers = {**answers, identifier: None}
    return answers


def _inputs_of(pipeline: Pipeline, members: tuple[str, ...]) -> tuple[str, ...]:
    found: list[str] = []
    for member in members:
        group = None if pipeline.find_input(member) else pipeline.find_group(member)
        found += group.members if group else (member,)
    return tuple(found)


def _is_applied_default(pipeline: Pipeline, answers: Answers, identifier: str) -> bool:
    question = pipeline.find_input(identifier)
    return (
        question is not None
        and question.optional
        and question.default is not None
        and identifier not in answers
    )


def _answer_one_of(
    pipeline: Pipeline, answers: Mapping[str, Any], members: tuple[str, ...], depth: int = 0
) -> Answers | None:
    for member in members:
        found = find_answer(pipeline, answers, member, depth)
        if found is not None:
            return found
    return None


def _add_if_it_fits(pipeline: Pipeline, answers: Answers, identifier: str) -> Answers:
    found = find_answer(pipeline, answers, identifier)
    return answers if found is None or find_invocation_problems(pipeline, found) else found


def _new_conflicts(pipeline: Pipeline, before: Mapping[str, Any], after: Answers) -> bool:
    """Whether something is wrong now that more answers will not mend."""
    mendable = ("is required", "one of these is required", "requires", "given together or not")
    old = find_invocation_problems(pipeline, dict(before))
    return any(
        problem not in old
        and not problem.message.startswith(mendable)
        and " requires " not in problem.message
        for problem in find_invocation_problems(pipeline, after)
    )


def _has_member(group: Group, answers: Mapping[str, Any]) -> bool:
    return any(answers.get(member) is not None for member in group.members)


def _example_values(question: Input) -> Iterator[Any]:
    """Values to try: the default, the choices, else one made up."""
    if question.default is not None and not any(find_answer_problems(question, question.default)):
        yield question.default
    entries = max(1, math.ceil(question.minimum_entries or 1))
    for value in _single_values(question):
        yield [value] * entries if question.is_list else value
    if question.is_list:
        yield from _single_values(question)  # an author's own schema may know it as one value


def _single_values(question: Input) -> Iterator[Value]:
    if question.choices:
        yield from question.choices
    elif question.kind == "Flag":
        yield True
    elif question.kind == "File":
        yield f"path/to/{question.id}"
    elif question.kind == "String":
        yield question.id
    else:
        yield from _numbers(question)


def _numbers(question: Input) -> Iterator[int | float]:
    """Numbers of which one lies inside the limits wherever one does: 1, those next to a limit, the middle."""
    yield 1
    low, high = question.minimum, question.maximum
    if low is not None:
        yield from (math.ceil(low), math.floor(low) + 1)
    if high is not None:
        yield from (math.floor(high), math.ceil(high) - 1)
    if low is not None and high is not None:
        yield (low + high) / 2
