"""Build example invocations, and decide the next question of an interactive dialogue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hibali.errors import HibaliError, UsageError
from registry.boutiques_schema import find_schema_problems
from registry.command_line import build_command_line
from registry.invocation import (
    Need,
    check_invocation,
    find_input_problems,
    find_invocation_problems,
    find_lasting_problems,
    find_needs,
    is_active,
)
from registry.pipeline import Group, Input, Pipeline, Value
from registry.problems import Problem

Values = dict[str, Any]
_DEEPEST = 32  # inputs that require inputs that require inputs ...


def make_example(pipeline: Pipeline, *, complete: bool = False) -> Values:
    """Make a valid invocation in the order of the inputs; with `complete`, for every input that the others allow.

    Raises `UsageError` where none was found: a descriptor can have requirements that no invocation satisfies.
    """
    values: Values = {}
    for each in pipeline.inputs:
        if not each.optional or (each.default is not None and any(find_input_problems(each, each.default))):
            values = satisfy_input(pipeline, values, each.id) or values
    for group in pipeline.groups:
        if group.one_is_required and not _has_member(group, values):
            values = _satisfy_one_of(pipeline, values, group.members) or values
    values = _repair_defaults(pipeline, values)
    for each in pipeline.inputs if complete else ():
        if each.id not in values:
            values = _add_if_valid(pipeline, values, each.id)
    values = _make_runnable(pipeline, values)
    problems = find_invocation_problems(pipeline, values)
    if problems:
        raise UsageError(
            "no-example",
            "no invocation was found that satisfies this descriptor: "
            + "; ".join(str(each) for each in problems),
            subject=pipeline.reference,
            hint=f"`hibali pipelines show {pipeline.reference}` lists the requirements and exclusions of the inputs.",
        )
    return {each.id: values[each.id] for each in pipeline.inputs if each.id in values}


def _make_runnable(pipeline: Pipeline, values: Values) -> Values:
    """Replace values, such as defaults, that are refused where the command line or the path of an output has them."""
    for _ in pipeline.inputs:
        try:
            build_command_line(pipeline, check_invocation(pipeline, values), work_folder="/work")
        except UsageError as problem:
            replaced = _replace_refused(pipeline, values, problem.subject)
            if replaced is None and problem.code == "unquotable-value":
                raise UsageError(
                    "no-example",
                    f"no values were found that can be used in the command line: {problem.message}",
                    subject=f"{pipeline.reference}: {problem.subject}",
                    hint="Ask the author of the pipeline to move the key out of the quotes.",
                ) from None
            if replaced is None:
                break
            values = replaced
        except HibaliError:
            break  # no values change this
        else:
            break
    return values


def _replace_refused(pipeline: Pipeline, values: Values, subject: str) -> Values | None:
    """Return the values with another one for the input, or for an input in the output, of that id; None without one."""
    output = next((each for each in pipeline.outputs if each.id == subject), None)
    templates = [output.path_template, *(path for _, path in output.conditions)] if output else []
    for tool_input in pipeline.inputs:
        in_path = tool_input.value_key and any(tool_input.value_key in each for each in templates)
        if tool_input.id != subject and not in_path:
            continue
        now = values.get(tool_input.id, tool_input.default)
        others = [each for each in _example_values(replace(tool_input, default=None)) if each != now]
        for value in [*others, *([None] if tool_input.optional else [])]:
            found = {**values, tool_input.id: value}
            if not find_invocation_problems(pipeline, found) and _runs(pipeline, found, subject):
                return found
    return None


def _runs(pipeline: Pipeline, values: Values, subject: str) -> bool:
    """Return whether the values are not refused because of this input or output."""
    try:
        build_command_line(pipeline, check_invocation(pipeline, values), work_folder="/work")
    except HibaliError as problem:
        return problem.subject != subject
    return True


def satisfy_input(
    pipeline: Pipeline, values: Mapping[str, Any], identifier: str, depth: int = 0
) -> Values | None:
    """Return the values with one for this input and all that it requires, using the first that is valid; None where none is."""
    tool_input = pipeline.find_input(identifier)
    if tool_input is None or depth > _DEEPEST:
        return None
    if identifier in values:
        return dict(values)
    for value in _example_values(tool_input):
        found: Values | None = {**values, identifier: value}
        first = value[0] if isinstance(value, list) and value else value
        mates = [
            mate
            for group in pipeline.groups
            if group.all_or_none and identifier in group.members
            for mate in group.members
        ]
        for other in (*tool_input.requires, *tool_input.value_requires.get(str(first), ()), *mates):
            group = pipeline.find_group(other)
            members = group.members if group and not pipeline.find_input(other) else (other,)
            if found is not None and not any(found.get(member) is not None for member in members):
                found = _satisfy_one_of(pipeline, found, members, depth + 1)
        if found is not None and not _new_conflicts(pipeline, values, found):
            return found
    return None


def _repair_defaults(pipeline: Pipeline, values: Values) -> Values:
    """Return the values with those that the defaults require; a default that cannot apply in any invocation is withdrawn."""
    for _ in pipeline.inputs:
        need = next(iter(find_needs(pipeline, values)), None)
        if need is None:
            break
        found = _satisfy_one_of(pipeline, values, _inputs_of(pipeline, need.members))
        if found is None and not _is_applied_default(pipeline, values, need.path):
            break
        values = {**values, need.path: None} if found is None else found
    for problem in find_invocation_problems(pipeline, values):
        identifier = problem.path.partition("[")[0]
        if _is_applied_default(pipeline, values, identifier):
            values = {**values, identifier: None}
    return values


def _inputs_of(pipeline: Pipeline, members: tuple[str, ...]) -> tuple[str, ...]:
    found: list[str] = []
    for member in members:
        group = None if pipeline.find_input(member) else pipeline.find_group(member)
        found += group.members if group else (member,)
    return tuple(found)


def _is_applied_default(pipeline: Pipeline, values: Values, identifier: str) -> bool:
    tool_input = pipeline.find_input(identifier)
    return (
        tool_input is not None
        and tool_input.optional
        and tool_input.default is not None
        and identifier not in values
    )


def _satisfy_one_of(
    pipeline: Pipeline, values: Mapping[str, Any], members: tuple[str, ...], depth: int = 0
) -> Values | None:
    for member in members:
        found = satisfy_input(pipeline, values, member, depth)
        if found is not None:
            return found
    return None


def _add_if_valid(pipeline: Pipeline, values: Values, identifier: str) -> Values:
    found = satisfy_input(pipeline, values, identifier)
    return values if found is None or find_invocation_problems(pipeline, found) else found


def _new_conflicts(pipeline: Pipeline, before: Mapping[str, Any], after: Values) -> bool:
    """Return whether there is a new problem that further values cannot solve."""
    mendable = ("is required", "one of these is required", "requires", "given together or not")
    old = find_invocation_problems(pipeline, dict(before))
    return any(
        problem not in old
        and not problem.message.startswith(mendable)
        and " requires " not in problem.message
        for problem in find_invocation_problems(pipeline, after)
    )


def _has_member(group: Group, values: Mapping[str, Any]) -> bool:
    return any(values.get(member) is not None for member in group.members)


def _example_values(tool_input: Input) -> Iterator[Any]:
    """Yield values to try: the default, the choices, else a generated one."""
    if tool_input.default is not None and not any(find_input_problems(tool_input, tool_input.default)):
        yield tool_input.default
    entries = max(1, math.ceil(tool_input.minimum_entries or 1))
    for value in _single_values(tool_input):
        yield [value] * entries if tool_input.is_list else value
    if tool_input.is_list:
        yield from _single_values(tool_input)  # an author's own schema may define it as one value


def _single_values(tool_input: Input) -> Iterator[Value]:
    if tool_input.choices:
        yield from tool_input.choices
    elif tool_input.kind == "Flag":
        yield True
    elif tool_input.kind == "File":
        yield f"path/to/{tool_input.id}"
    elif tool_input.kind == "String":
        yield tool_input.id
    else:
        yield from _numbers(tool_input)


def _numbers(tool_input: Input) -> Iterator[int | float]:
    """Yield candidates within the limits: 1, those next to a limit, and the middle."""
    yield 1
    low, high = tool_input.minimum, tool_input.maximum
    if low is not None:
        yield from (math.ceil(low), math.floor(low) + 1)
    if high is not None:
        yield from (math.floor(high), math.ceil(high) - 1)
    if low is not None and high is not None:
        yield (low + high) / 2


@dataclass(frozen=True, slots=True)
class AskInput:
    """One question, its reason, and whether it can be skipped (then its default applies, if it has one)."""

    tool_input: Input
    reason: str
    can_skip: bool


@dataclass(frozen=True, slots=True)
class ChooseInput:
    """One of these inputs is needed."""

    members: tuple[Input, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class OfferInputs:
    """The values are a valid invocation; these inputs can have values, too."""

    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class Unsatisfiable:
    """No further answer solves these problems: an earlier one has to be withdrawn."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Completed:
    """A valid invocation, in the order of the inputs."""

    values: Mapping[str, Any]


Step = AskInput | ChooseInput | OfferInputs | Unsatisfiable | Completed


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The state of a dialogue: the values so far, the skipped and the requested inputs; `closed` if the user wants no more prompts."""

    pipeline: Pipeline
    values: Mapping[str, Any] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()
    requested: tuple[str, ...] = ()
    closed: bool = False

    def answer(self, identifier: str, value: Any) -> Dialogue:
        """Return the dialogue with this answer, which `find_value_conflicts` accepted."""
        return replace(self, values={**self.values, identifier: value})

    def skip(self, identifier: str) -> Dialogue:
        """Return the dialogue with this question skipped."""
        return replace(self, skipped=self.skipped | {identifier})

    def request(self, identifier: str) -> Dialogue:
        """Return the dialogue with one more requested input; a named flag is set where that is allowed."""
        tool_input = self.pipeline.find_input(identifier)
        if (
            tool_input is not None
            and tool_input.kind == "Flag"
            and not find_value_conflicts(self, tool_input, value=True)
        ):
            return self.answer(identifier, value=True)
        return replace(self, requested=(*self.requested, identifier), skipped=self.skipped - {identifier})

    def close(self) -> Dialogue:
        """Return the dialogue without further optional questions."""
        return replace(self, closed=True)


def next_step(dialogue: Dialogue) -> Step:
    """Return the next step: required inputs, then their requirements, then requested inputs; `Completed` only with a valid invocation."""
    pipeline, values = dialogue.pipeline, dialogue.values
    for each in pipeline.inputs:
        if not each.optional and each.id not in {*values, *dialogue.skipped}:
            return AskInput(each, "required", can_skip=_has_default(each))
    for need in find_needs(pipeline, values):
        return _step_for(dialogue, need)
    for identifier in dialogue.requested:
        tool_input = pipeline.find_input(identifier)
        if tool_input is not None and identifier not in {*values, *dialogue.skipped}:
            return AskInput(tool_input, "", can_skip=True)
    problems = find_invocation_problems(pipeline, values)
    for problem in problems:
        tool_input = pipeline.find_input(problem.path.partition("[")[0])
        if tool_input is not None and tool_input.id not in values:  # its default is wrong
            return AskInput(tool_input, problem.message, can_skip=False)
    if problems:
        return Unsatisfiable(tuple(problems))
    offered = () if dialogue.closed else tuple(each for each in pipeline.inputs if _is_open(dialogue, each))
    if offered:
        return OfferInputs(offered)
    return Completed({each.id: values[each.id] for each in pipeline.inputs if each.id in values})


def find_value_conflicts(dialogue: Dialogue, tool_input: Input, value: Any) -> list[Problem]:
    """Return the problems of this value together with the others that further values cannot solve."""
    pipeline, before = dialogue.pipeline, dialogue.values
    after = {**before, tool_input.id: value}
    problems = find_lasting_problems(pipeline, before, after) or _find_schema_problems(
        pipeline, tool_input, value
    )
    if problems:
        return problems
    old = find_needs(pipeline, before)
    fresh = [need for need in find_needs(pipeline, after) if need not in old]
    return [
        Problem(need.path, f"{need.message} and cannot be given together with the other values")
        for need in fresh
        if not _candidates(pipeline, after, need)
    ]


def unwrap_for_schema(pipeline: Pipeline, tool_input: Input, value: Any) -> Any:
    """Return the value, or its only entry where the author's own schema has a single value for this list."""
    if not isinstance(value, list) or len(value) != 1:
        return value
    fits = not _find_schema_problems(pipeline, tool_input, value) or _find_schema_problems(
        pipeline, tool_input, value[0]
    )
    return value if fits else value[0]


def _find_schema_problems(pipeline: Pipeline, tool_input: Input, value: Any) -> list[Problem]:
    """Check this value alone against the author's own schema, if there is one."""
    own_schema = pipeline.document.get("invocation-schema")
    if not own_schema:
        return []
    found = find_schema_problems(own_schema, {tool_input.id: value})
    return [problem for problem in found if problem.path.partition("[")[0] == tool_input.id]


def find_entry_problems(tool_input: Input, value: Any) -> list[Problem]:
    """Return the problems of one entry of a list."""
    return list(find_input_problems(replace(tool_input, is_list=False), value))


def _step_for(dialogue: Dialogue, need: Need) -> Step:
    found = _candidates(dialogue.pipeline, dialogue.values, need)
    chosen = tuple(each for each in found if each.id in dialogue.requested) or found
    if not chosen:
        return Unsatisfiable((need.to_problem(),))
    reason = f"{need.path}: {need.message}"
    return AskInput(chosen[0], reason, can_skip=False) if len(chosen) == 1 else ChooseInput(chosen, reason)


def _candidates(pipeline: Pipeline, values: Mapping[str, Any], need: Need) -> tuple[Input, ...]:
    """Return the inputs that satisfy the need and are compatible with the other values."""
    inputs: list[Input] = []
    for member in need.members:
        tool_input, group = pipeline.find_input(member), pipeline.find_group(member)
        members = [tool_input] if tool_input else map(pipeline.find_input, group.members if group else ())
        inputs += [each for each in members if each is not None and each not in inputs]
    return tuple(each for each in inputs if _fits(pipeline, values, each))


def _fits(pipeline: Pipeline, values: Mapping[str, Any], tool_input: Input) -> bool:
    """Return whether the input has a value that is compatible with the others; its present value (a flag that is off) can be replaced."""
    others = {identifier: value for identifier, value in values.items() if identifier != tool_input.id}
    return satisfy_input(pipeline, others, tool_input.id) is not None


def _is_open(dialogue: Dialogue, tool_input: Input) -> bool:
    if tool_input.id in {*dialogue.values, *dialogue.skipped, *dialogue.requested}:
        return False
    on = tool_input.kind == "Flag" and is_active(dialogue.pipeline, tool_input.id, dialogue.values)
    return not on and _fits(dialogue.pipeline, dialogue.values, tool_input)


def _has_default(tool_input: Input) -> bool:
    return tool_input.default is not None and not any(find_input_problems(tool_input, tool_input.default))
