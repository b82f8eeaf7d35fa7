"""Build example invocations, and decide the next question of a dialogue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hibali.errors import UsageError
from registry.invocation import (
    Need,
    find_answer_problems,
    find_invocation_problems,
    find_lasting_problems,
    find_needs,
    is_active,
)
from registry.pipeline import Group, Input, Pipeline, Value
from registry.problems import Problem

Answers = dict[str, Any]
_DEEPEST = 32  # inputs that require inputs that require inputs ...


def make_example(pipeline: Pipeline, *, complete: bool = False) -> Answers:
    """Make a valid invocation in the order of the inputs; with `complete`, answer every input that the others allow.

    Raises `UsageError` where none was found: a descriptor can have requirements that nothing satisfies.
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
            subject=pipeline.reference,
            hint=f"`hibali pipelines show {pipeline.reference}` lists what the inputs require and exclude.",
        )
    return {each.id: answers[each.id] for each in pipeline.inputs if each.id in answers}


def find_answer(
    pipeline: Pipeline, answers: Mapping[str, Any], identifier: str, depth: int = 0
) -> Answers | None:
    """Return the answers with this input and all that it requires, using the first value that fits; None where none does."""
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
    """Return the answers with those that the defaults require; a default that cannot apply in any invocation is withdrawn."""
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
    """Return whether there is a new problem that further answers cannot solve."""
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
    """Return values to try: the default, the choices, else a made-up one."""
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
    """Return candidates within the limits: 1, those next to a limit, and the middle."""
    yield 1
    low, high = question.minimum, question.maximum
    if low is not None:
        yield from (math.ceil(low), math.floor(low) + 1)
    if high is not None:
        yield from (math.floor(high), math.ceil(high) - 1)
    if low is not None and high is not None:
        yield (low + high) / 2


@dataclass(frozen=True, slots=True)
class Ask:
    """One question, its reason, and whether it can be skipped (then its default applies, if it has one)."""

    question: Input
    because: str
    may_pass: bool


@dataclass(frozen=True, slots=True)
class Choose:
    """One of these inputs is needed."""

    members: tuple[Input, ...]
    because: str


@dataclass(frozen=True, slots=True)
class Offer:
    """The answers are a valid invocation; these inputs can be answered, too."""

    questions: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class Stuck:
    """No further answer solves this problem: an earlier one has to be withdrawn."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """A valid invocation, in the order of the inputs."""

    values: Mapping[str, Any]


Step = Ask | Choose | Offer | Stuck | Done


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The state of a dialogue: what was answered, skipped, and requested; `closed` when the user wants no more questions."""

    pipeline: Pipeline
    answers: Mapping[str, Any] = field(default_factory=dict)
    passed: frozenset[str] = frozenset()
    wanted: tuple[str, ...] = ()
    closed: bool = False

    def answered(self, identifier: str, value: Any) -> Dialogue:
        """Return the dialogue with this answer, which `judge_answer` accepted."""
        return replace(self, answers={**self.answers, identifier: value})

    def passed_over(self, identifier: str) -> Dialogue:
        """Return the dialogue with this question skipped."""
        return replace(self, passed=self.passed | {identifier})

    def chose(self, identifier: str) -> Dialogue:
        """Return the dialogue with one more input to ask for; a named flag is set where that is allowed."""
        question = self.pipeline.find_input(identifier)
        if question is not None and question.kind == "Flag" and not judge_answer(self, question, value=True):
            return self.answered(identifier, value=True)
        return replace(self, wanted=(*self.wanted, identifier), passed=self.passed - {identifier})

    def ended(self) -> Dialogue:
        """Return the dialogue without further optional questions."""
        return replace(self, closed=True)


def next_step(dialogue: Dialogue) -> Step:
    """Return the next step: required inputs, then what those require, then requested ones; `Done` only with a valid invocation."""
    pipeline, answers = dialogue.pipeline, dialogue.answers
    for each in pipeline.inputs:
        if not each.optional and each.id not in {*answers, *dialogue.passed}:
            return Ask(each, "required", may_pass=_has_default(each))
    for need in find_needs(pipeline, answers):
        return _step_for(dialogue, need)
    for identifier in dialogue.wanted:
        question = pipeline.find_input(identifier)
        if question is not None and identifier not in {*answers, *dialogue.passed}:
            return Ask(question, "", may_pass=True)
    problems = find_invocation_problems(pipeline, answers)
    for problem in problems:
        question = pipeline.find_input(problem.path.partition("[")[0])
        if question is not None and question.id not in answers:  # its default is wrong
            return Ask(question, problem.message, may_pass=False)
    if problems:
        return Stuck(tuple(problems))
    offered = () if dialogue.closed else tuple(each for each in pipeline.inputs if _is_open(dialogue, each))
    if offered:
        return Offer(offered)
    return Done({each.id: answers[each.id] for each in pipeline.inputs if each.id in answers})


def judge_answer(dialogue: Dialogue, question: Input, value: Any) -> list[Problem]:
    """Return the problems of this answer together with the others that further answers cannot solve."""
    pipeline, before = dialogue.pipeline, dialogue.answers
    after = {**before, question.id: value}
    problems = find_lasting_problems(pipeline, before, after) or _said_by_schema(pipeline, question, value)
    if problems:
        return problems
    old = find_needs(pipeline, before)
    fresh = [need for need in find_needs(pipeline, after) if need not in old]
    return [
        Problem(need.path, f"{need.message} and cannot be given together with the other answers")
        for need in fresh
        if not _candidates(pipeline, after, need)
    ]


def as_schema_has_it(pipeline: Pipeline, question: Input, value: Any) -> Any:
    """Return the answer, or its only entry where the author's own schema has a single value for this list."""
    if not isinstance(value, list) or len(value) != 1:
        return value
    fits = not _said_by_schema(pipeline, question, value) or _said_by_schema(pipeline, question, value[0])
    return value if fits else value[0]


def _said_by_schema(pipeline: Pipeline, question: Input, value: Any) -> list[Problem]:
    """Check this answer alone against the author's own schema, if there is one."""
    own_schema = pipeline.document.get("invocation-schema")
    if not own_schema:
        return []
    from registry.boutiques_schema import find_schema_problems

    found = find_schema_problems(own_schema, {question.id: value})
    return [problem for problem in found if problem.path.partition("[")[0] == question.id]


def judge_entry(question: Input, value: Any) -> list[Problem]:
    """Return the problems of one entry of a list."""
    return list(find_answer_problems(replace(question, is_list=False), value))


def _step_for(dialogue: Dialogue, need: Need) -> Step:
    found = _candidates(dialogue.pipeline, dialogue.answers, need)
    chosen = tuple(each for each in found if each.id in dialogue.wanted) or found
    if not chosen:
        return Stuck((need.to_problem(),))
    because = f"{need.path}: {need.message}"
    return Ask(chosen[0], because, may_pass=False) if len(chosen) == 1 else Choose(chosen, because)


def _candidates(pipeline: Pipeline, answers: Mapping[str, Any], need: Need) -> tuple[Input, ...]:
    """Return the inputs that satisfy the need and can be answered together with the others."""
    inputs: list[Input] = []
    for member in need.members:
        question, group = pipeline.find_input(member), pipeline.find_group(member)
        members = [question] if question else map(pipeline.find_input, group.members if group else ())
        inputs += [each for each in members if each is not None and each not in inputs]
    return tuple(each for each in inputs if _fits(pipeline, answers, each))


def _fits(pipeline: Pipeline, answers: Mapping[str, Any], question: Input) -> bool:
    """Return whether the input has an answer that fits the others; a given answer (a flag that is off) can be replaced."""
    others = {identifier: value for identifier, value in answers.items() if identifier != question.id}
    return find_answer(pipeline, others, question.id) is not None


def _is_open(dialogue: Dialogue, question: Input) -> bool:
    if question.id in {*dialogue.answers, *dialogue.passed, *dialogue.wanted}:
        return False
    on = question.kind == "Flag" and is_active(dialogue.pipeline, question.id, dialogue.answers)
    return not on and _fits(dialogue.pipeline, dialogue.answers, question)


def _has_default(question: Input) -> bool:
    return question.default is not None and not any(find_answer_problems(question, question.default))
