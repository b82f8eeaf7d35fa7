"""What to ask next so that an invocation comes out: a pure function of the answers given so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from registry.answer import find_answer_problems
from registry.example import find_answer
from registry.invocation import (
    Need,
    find_invocation_problems,
    find_lasting_problems,
    find_needs,
    is_active,
)
from registry.pipeline import Input, Pipeline
from registry.problem import Problem


@dataclass(frozen=True, slots=True)
class Ask:
    """One question, why it is asked, and whether it can be passed over (then its default counts, if it has one)."""

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
    """The answers are an invocation; these can be answered besides."""

    questions: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class Stuck:
    """No further answer mends this: one that was given has to be taken back."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """A valid invocation, in the order of the inputs."""

    values: Mapping[str, Any]


Step = Ask | Choose | Offer | Stuck | Done


@dataclass(frozen=True, slots=True)
class Dialogue:
    """How far it is: what was answered, passed over, and wished to be asked; `closed` when nothing more is wanted."""

    pipeline: Pipeline
    answers: Mapping[str, Any] = field(default_factory=dict)
    passed: frozenset[str] = frozenset()
    wanted: tuple[str, ...] = ()
    closed: bool = False

    def answered(self, identifier: str, value: Any) -> Dialogue:
        """With this answer, which `judge_answer` found right."""
        return replace(self, answers={**self.answers, identifier: value})

    def passed_over(self, identifier: str) -> Dialogue:
        """Without an answer to this one."""
        return replace(self, passed=self.passed | {identifier})

    def chose(self, identifier: str) -> Dialogue:
        """With one more that is to be asked; a flag that somebody names is set, as far as that may be."""
        question = self.pipeline.find_input(identifier)
        if question is not None and question.kind == "Flag" and not judge_answer(self, question, value=True):
            return self.answered(identifier, value=True)
        return replace(self, wanted=(*self.wanted, identifier), passed=self.passed - {identifier})

    def ended(self) -> Dialogue:
        """With nothing more that is not needed."""
        return replace(self, closed=True)


def next_step(dialogue: Dialogue) -> Step:
    """What comes next: what is required, then what that entails, then what was wished for; `Done` only with a valid invocation."""
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
    """What is wrong with this answer beside those given, that further answers do not mend; none: it can be taken."""
    pipeline, before = dialogue.pipeline, dialogue.answers
    after = {**before, question.id: value}
    problems = find_lasting_problems(pipeline, before, after) or _said_by_schema(pipeline, question, value)
    if problems:
        return problems
    old = find_needs(pipeline, before)
    fresh = [need for need in find_needs(pipeline, after) if need not in old]
    return [
        Problem(need.path, f"{need.message} and cannot be given beside the other answers")
        for need in fresh
        if not _candidates(pipeline, after, need)
    ]


def as_schema_has_it(pipeline: Pipeline, question: Input, value: Any) -> Any:
    """The answer, or its one entry where the author's own schema knows this list as a single value."""
    if not isinstance(value, list) or len(value) != 1:
        return value
    fits = not _said_by_schema(pipeline, question, value) or _said_by_schema(pipeline, question, value[0])
    return value if fits else value[0]


def _said_by_schema(pipeline: Pipeline, question: Input, value: Any) -> list[Problem]:
    """What the author's own schema, if there is one, says of this answer by itself."""
    own_schema = pipeline.document.get("invocation-schema")
    if not own_schema:
        return []
    from registry.reference import find_schema_problems

    found = find_schema_problems(own_schema, {question.id: value})
    return [problem for problem in found if problem.path.partition("[")[0] == question.id]


def judge_entry(question: Input, value: Any) -> list[Problem]:
    """What is wrong with one entry of a list by itself."""
    return list(find_answer_problems(replace(question, is_list=False), value))


def _step_for(dialogue: Dialogue, need: Need) -> Step:
    found = _candidates(dialogue.pipeline, dialogue.answers, need)
    chosen = tuple(each for each in found if each.id in dialogue.wanted) or found
    if not chosen:
        return Stuck((need.to_problem(),))
    because = f"{need.path}: {need.message}"
    return Ask(chosen[0], because, may_pass=False) if len(chosen) == 1 else Choose(chosen, because)


def _candidates(pipeline: Pipeline, answers: Mapping[str, Any], need: Need) -> tuple[Input, ...]:
    """The inputs of which one meets the need and can be answered beside the others."""
    inputs: list[Input] = []
    for member in need.members:
        question, group = pipeline.find_input(member), pipeline.find_group(member)
        members = [question] if question else map(pipeline.find_input, group.members if group else ())
        inputs += [each for each in members if each is not None and each not in inputs]
    return tuple(each for each in inputs if _fits(pipeline, answers, each))


def _fits(pipeline: Pipeline, answers: Mapping[str, Any], question: Input) -> bool:
    """Whether some answer to it is right beside the others; one that was given (a flag that is off) may become another."""
    others = {identifier: value for identifier, value in answers.items() if identifier != question.id}
    return find_answer(pipeline, others, question.id) is not None


def _is_open(dialogue: Dialogue, question: Input) -> bool:
    if question.id in {*dialogue.answers, *dialogue.passed, *dialogue.wanted}:
        return False
    on = question.kind == "Flag" and is_active(dialogue.pipeline, question.id, dialogue.answers)
    return not on and _fits(dialogue.pipeline, dialogue.answers, question)


def _has_default(question: Input) -> bool:
    return question.default is not None and not any(find_answer_problems(question, question.default))
