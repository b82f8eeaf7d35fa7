"""An invocation: the answers to a pipeline's questions, checked completely before anything else happens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hibali.nearest import nearest
from hibali.strict_json import read_json
from registry.answer import find_answer_problems, find_shape_problems
from registry.defaults import add_defaults, find_withdrawn, is_in_image
from registry.defaults import is_active as _is_active
from registry.pipeline import Group, Input, Pipeline
from registry.problem import InvocationError, Problem


@dataclass(frozen=True, slots=True)
class Invocation:
    """Checked answers. `values` holds the defaults that apply too; what is absent is not there; `given` is what was passed in.

    `file_ids` are the inputs that name files outside the pipeline's image. `withdrawn` are the inputs whose default does not apply,
    each with the input that excludes it.
    """

    values: Mapping[str, Any]
    given: Mapping[str, Any] = field(compare=False)
    file_ids: tuple[str, ...] = ()
    withdrawn: Mapping[str, str] = field(default_factory=dict, compare=False)

    def file_inputs(self) -> list[tuple[str, str | list[str]]]:
        """The answers of kind File: input id, and the path (or paths, for a list) as written."""
        return [(each, self.values[each]) for each in self.file_ids]


@dataclass(frozen=True, slots=True)
class Need:
    """Something that more answers mend: any one of `members` (inputs or groups), because of the input or group `path`."""

    path: str
    members: tuple[str, ...]
    message: str

    def to_problem(self) -> Problem:
        """What is wrong as long as it is not met."""
        return Problem(self.path, self.message)


def read_invocation(pipeline: Pipeline, path: Path) -> Invocation:
    """The checked answers in a file; what is wrong is named with the file and the line.

    Raises `NotFoundError`, `UsageError` and `InvocationError`.
    """
    from registry.descriptor import place_problems, read_file_bytes

    raw = read_file_bytes(path)
    values = read_json(raw, str(path))
    problems = find_invocation_problems(pipeline, values)
    if problems:
        placed = place_problems(problems, raw)
        raise InvocationError(placed, reference=pipeline.reference, about=str(path))
    return check_invocation(pipeline, values)


def check_invocation(pipeline: Pipeline, values: Any) -> Invocation:
    """The checked answers, with the defaults that apply; raises `InvocationError` with every problem at once.

    Stricter than the reference, which accepts `{}` unseen and knows neither value-requires, value-disables
    nor all-or-none groups. A default that applies counts as an answer, there as here.
    """
    problems = find_invocation_problems(pipeline, values)
    if problems:
        raise InvocationError(problems, reference=pipeline.reference)
    answers = add_defaults(pipeline, values)
    files = tuple(
        each.id
        for each in pipeline.inputs
        if each.kind == "File" and each.id in answers and not is_in_image(pipeline, each, answers[each.id])
    )
    return Invocation(answers, dict(values), files, find_withdrawn(pipeline, values))


def find_invocation_problems(pipeline: Pipeline, values: Any) -> list[Problem]:
    """Everything that is wrong with the answers; none: they are complete and consistent."""
    if not isinstance(values, Mapping):
        return [Problem("", "an invocation is a JSON object of input ids and values")]
    problems = find_rule_problems(pipeline, values)
    own_schema = pipeline.document.get("invocation-schema")
    if own_schema and not problems:
        from registry.reference import find_schema_problems

        problems = list(dict.fromkeys(find_schema_problems(own_schema, add_defaults(pipeline, values))))
    return problems


def _find_unknown(pipeline: Pipeline, values: Mapping[str, Any]) -> Iterator[Problem]:
    known = [each.id for each in pipeline.inputs]
    for identifier in values:
        if identifier not in known:
            near = nearest(identifier[:100], known)
            yield Problem(identifier, f"no such input; is it {near}?" if near else "no such input")


def _find_missing(pipeline: Pipeline, answers: Mapping[str, Any]) -> Iterator[Problem]:
    for each in pipeline.inputs:
        if not each.optional and each.id not in answers:
            yield Problem(each.id, "is required")


def find_needs(pipeline: Pipeline, values: Mapping[str, Any]) -> list[Need]:
    """What the answers ask for beside themselves, in the order of inputs and groups; required inputs not among them."""
    answers = add_defaults(pipeline, values)
    active = [each for each in pipeline.inputs if _is_active(pipeline, each.id, answers)]
    return [
        *(need for each in active for need in _find_needs_of(pipeline, each, answers)),
        *(need for group in pipeline.groups for need in _find_group_needs(pipeline, group, answers)),
    ]


def find_rule_problems(pipeline: Pipeline, values: Mapping[str, Any]) -> list[Problem]:
    """What is wrong by the rules of inputs and groups; an author's own schema is for whole invocations and not asked."""
    answers = add_defaults(pipeline, values)
    own_schema = pipeline.document.get("invocation-schema")
    # As in the reference, an author's own schema stands in the place of what the inputs say of single values.
    judge = find_shape_problems if own_schema else find_answer_problems
    problems = [
        *_find_unknown(pipeline, values),
        *_find_missing(pipeline, answers),
        *(
            problem
            for each in pipeline.inputs
            if each.id in answers
            for problem in judge(each, answers[each.id])
        ),
        *_find_conflicts(pipeline, answers),
        *(problem for group in pipeline.groups for problem in _find_group_problems(pipeline, group, answers)),
    ]
    return [_with_way_out(pipeline, values, problem) for problem in dict.fromkeys(problems)]


def _with_way_out(pipeline: Pipeline, values: Mapping[str, Any], problem: Problem) -> Problem:
    """The problem; where a default that nobody asked for causes it, with how to do without it."""
    question = pipeline.find_input(problem.path.partition("[")[0])
    if question is None or question.default is None or not question.optional or question.id in values:
        return problem
    return replace(problem, instead=f'its default applies; "{question.id}": null withdraws it')


def find_lasting_problems(
    pipeline: Pipeline, before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[Problem]:
    """What the rules find wrong with `after` that was not with `before`, and that more answers do not mend."""
    answers = add_defaults(pipeline, after)
    passing = [
        *find_rule_problems(pipeline, before),
        *(need.to_problem() for need in find_needs(pipeline, after)),
        *_find_missing(pipeline, answers),
    ]
    known = {(each.path, each.message) for each in passing}
    return [each for each in find_rule_problems(pipeline, after) if (each.path, each.message) not in known]


def is_active(pipeline: Pipeline, identifier: str, values: Mapping[str, Any]) -> bool:
    """Answered, by a default too; for a flag: set. A group is active when one of its members is."""
    return _is_active(pipeline, identifier, add_defaults(pipeline, values))


def _find_conflicts(pipeline: Pipeline, answers: Mapping[str, Any]) -> Iterator[Problem]:
    for each in pipeline.inputs:
        if not _is_active(pipeline, each.id, answers):
            continue
        yield from (need.to_problem() for need in _find_needs_of(pipeline, each, answers))
        for other in each.disables:
            if _is_active(pipeline, other, answers):
                yield Problem(each.id, f"cannot be given together with {other}")
        for value in _values(answers[each.id]):
            for other in each.value_disables.get(str(value), ()):
                if _is_active(pipeline, other, answers):
                    yield Problem(each.id, f"the value {value} cannot be given together with {other}")


def _find_needs_of(pipeline: Pipeline, each: Input, answers: Mapping[str, Any]) -> Iterator[Need]:
    for other in each.requires:
        if not _is_active(pipeline, other, answers):
            yield Need(each.id, (other,), f"requires {other}, which is not given")
    for value in _values(answers[each.id]):
        for other in each.value_requires.get(str(value), ()):
            if not _is_active(pipeline, other, answers):
                yield Need(each.id, (other,), f"the value {value} requires {other}, which is not given")


def _values(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]


def _find_group_needs(pipeline: Pipeline, group: Group, answers: Mapping[str, Any]) -> Iterator[Need]:
    active = [member for member in group.members if _is_active(pipeline, member, answers)]
    if group.one_is_required and not active:
        yield Need(group.id, group.members, f"one of these is required: {', '.join(group.members)}")
    if group.all_or_none and active and len(active) < len(group.members):
        absent = [member for member in group.members if member not in active]
        told = f"given together or not at all: {', '.join(active)} without {', '.join(absent)}"
        yield Need(group.id, tuple(absent[:1]), told)


def _find_group_problems(pipeline: Pipeline, group: Group, answers: Mapping[str, Any]) -> Iterator[Problem]:
    active = [member for member in group.members if _is_active(pipeline, member, answers)]
    if group.mutually_exclusive and len(active) > 1:
        yield Problem(group.id, f"only one of these can be given, not {', '.join(active)}")
    yield from (need.to_problem() for need in _find_group_needs(pipeline, group, answers))
