"""Check an invocation completely: types, choices, limits, groups and defaults."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hibali.documents import read_json
from hibali.text import nearest
from registry.boutiques_schema import find_schema_problems
from registry.pipeline import Group, Input, Pipeline
from registry.problems import InvocationError, Problem, place_problems, read_file_bytes

_YES, _NO = frozenset({"y", "yes", "true", "on", "1"}), frozenset({"n", "no", "false", "off", "0"})


def read_typed(tool_input: Input, text: str) -> Any:
    """Parse a typed value; text of another type is returned unchanged, so that the rules report it.

    Text that begins with a quotation mark is a JSON string, so that blanks at the ends, control characters and `""` can be typed.
    """
    text = text.strip()
    quoted = _unquoted(text)
    if tool_input.choices:
        return _choice(tool_input, text if quoted is None else quoted)
    if quoted is not None:
        return quoted
    if tool_input.kind == "Flag":
        lowered = text.lower()
        return True if lowered in _YES else False if lowered in _NO else text
    if tool_input.kind == "Number" or tool_input.integer:
        number = _number(text)
        return text if number is None else number
    return text


def write_typed(value: Any) -> str:
    """Return the text that `read_typed` reads as this value, without control characters."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str):
        return json.dumps(value)
    plain = value.isprintable() and value.strip() == value and not value.startswith(('"', "<")) and value
    return value if plain else json.dumps(value)


def _choice(tool_input: Input, text: str) -> Any:
    for choice in tool_input.choices or ():
        if text == str(choice) or _number(text) == choice:
            return choice
    return text


def _unquoted(text: str) -> str | None:
    if not text.startswith('"'):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _number(text: str) -> int | float | None:
    """Parse a number as in JSON, also with a leading plus or without digits around the point; never `nan` or `1_000`."""
    if not text or not set(text) <= set("0123456789+-.eE"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


_WANTED = {
    "String": "a string",
    "File": "a path, written as a string",
    "Number": "a number",
    "Flag": "true or false",
}


def find_input_problems(tool_input: Input, value: Any) -> Iterator[Problem]:
    """Yield the problems of a value by itself, without relations between inputs."""
    if not tool_input.is_list:
        yield from _find_value_problems(tool_input, value, tool_input.id)
        return
    if not isinstance(value, list):
        yield Problem(tool_input.id, f"must be a list, not {show_value(value)}")
        return
    if tool_input.minimum_entries and len(value) < tool_input.minimum_entries:
        yield Problem(tool_input.id, f"needs at least {tool_input.minimum_entries} entries, not {len(value)}")
    if tool_input.maximum_entries and len(value) > tool_input.maximum_entries:
        yield Problem(tool_input.id, f"takes at most {tool_input.maximum_entries} entries, not {len(value)}")
    for number, entry in enumerate(value):
        yield from _find_value_problems(tool_input, entry, f"{tool_input.id}[{number}]")


def find_shape_problems(tool_input: Input, value: Any) -> Iterator[Problem]:
    """Yield the problems of values that no command line can express, even if the author's own schema permits them."""
    if tool_input.kind == "Flag" and not isinstance(value, bool):
        yield Problem(tool_input.id, f"must be true or false, not {show_value(value)}")
        return
    for number, entry in enumerate(_entries(value)):
        path = f"{tool_input.id}[{number}]" if isinstance(value, list) else tool_input.id
        if isinstance(entry, str):
            yield from _find_text_problems(entry, path)
        elif entry is None or isinstance(entry, list | dict):
            yield Problem(path, f"must be a single value, not {show_value(entry)}")
        elif isinstance(entry, float) and not math.isfinite(entry):
            yield Problem(path, "is too large for a number")


def show_value(value: Any) -> str:
    """Return a value as JSON, shortened for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:76] + " ..."


def _find_value_problems(tool_input: Input, value: Any, path: str) -> Iterator[Problem]:
    wrong = _find_kind_problem(tool_input, value)
    if wrong:
        yield Problem(path, wrong)
        return
    if isinstance(value, str):
        yield from _find_text_problems(value, path)
    elif not isinstance(value, bool):
        yield from _find_limit_problems(tool_input, value, path)


def _find_kind_problem(tool_input: Input, value: Any) -> str:
    """Return the problem of a value's type, or if there are choices, that it is not one of them; "" for a valid value."""
    if value is None:
        return "null is not a value; omit the input"
    if tool_input.integer and (not isinstance(value, int) or isinstance(value, bool)):
        return f"must be a whole number, not {show_value(value)}"
    if tool_input.choices:
        permitted = any(
            choice == value and isinstance(choice, str) == isinstance(value, str)
            for choice in tool_input.choices
            if not isinstance(value, bool)
        )
        shown = ", ".join(show_value(choice) for choice in tool_input.choices)
        return "" if permitted else f"must be one of {shown}, not {show_value(value)}"
    fitting = {
        "String": isinstance(value, str),
        "File": isinstance(value, str),
        "Number": isinstance(value, int | float) and not isinstance(value, bool),
        "Flag": isinstance(value, bool),
    }
    return "" if fitting[tool_input.kind] else f"must be {_WANTED[tool_input.kind]}, not {show_value(value)}"


def _find_text_problems(value: str, path: str) -> Iterator[Problem]:
    """Check for text that no program can get as an argument: NUL bytes, and half surrogate pairs."""
    if "\0" in value:
        yield Problem(path, "has a NUL character, which arguments of programs cannot have")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        yield Problem(path, "has half a surrogate pair, which is not a character")


def _find_limit_problems(tool_input: Input, value: Any, path: str) -> Iterator[Problem]:
    if isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, "is too large for a number")
        return
    low, high = tool_input.minimum, tool_input.maximum
    if low is not None and (value < low or (tool_input.exclusive_minimum and value == low)):
        relation = "greater than" if tool_input.exclusive_minimum else "at least"
        yield Problem(path, f"must be {relation} {low}, not {show_value(value)}")
    if high is not None and (value > high or (tool_input.exclusive_maximum and value == high)):
        relation = "less than" if tool_input.exclusive_maximum else "at most"
        yield Problem(path, f"must be {relation} {high}, not {show_value(value)}")


def add_defaults(pipeline: Pipeline, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the defaults that apply.

    `null` withdraws the default of an optional input. A given value outranks a default that it excludes, or that excludes it; of two
    defaults the one that disables the other applies, else the first. A required input without a value always has its default.
    """
    return _decide(pipeline, values)[0]


def find_withdrawn(pipeline: Pipeline, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the inputs whose default does not apply, each with the input that excludes it."""
    return _decide(pipeline, values)[1]


def has_value(pipeline: Pipeline, identifier: str, effective: Mapping[str, Any]) -> bool:
    """Return whether an input has a value, or a flag is set; for a group, whether one of its members has."""
    group = pipeline.find_group(identifier)
    if group is not None and pipeline.find_input(identifier) is None:
        return any(has_value(pipeline, member, effective) for member in group.members)
    found = pipeline.find_input(identifier)
    if found is not None and found.kind == "Flag":
        return effective.get(identifier) is True
    return identifier in effective


def is_in_image(pipeline: Pipeline, tool_input: Input, value: Any) -> bool:
    """Return whether this value of a File input is a file of the pipeline's image: its absolute default.

    A value that repeats the default means the same file.
    """
    if tool_input.kind != "File" or pipeline.container is None or value != tool_input.default:
        return False
    paths = _entries(value)
    return bool(paths) and all(isinstance(path, str) and path.startswith("/") for path in paths)


def _decide(pipeline: Pipeline, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    with_default = [each for each in pipeline.inputs if each.default is not None]
    null = {each.id for each in with_default if each.id in values and values[each.id] is None}
    effective = {identifier: value for identifier, value in values.items() if identifier not in null}
    added = {each.id: each.default for each in with_default if each.id not in effective and not each.optional}
    waiting = [each for each in with_default if each.id not in values and each.optional]
    related = _find_related(pipeline)
    added |= {each.id: each.default for each in waiting if each.id not in related}
    waiting = [each for each in waiting if each.id in related]
    groups = [frozenset(each.members) for each in pipeline.groups if each.mutually_exclusive]
    known = {**effective, **added}
    applied = [(each, known[each.id]) for each in pipeline.inputs if each.id in related and each.id in known]
    withdrawn: dict[str, str] = {}
    while True:
        for other, value in applied:
            for each in list(waiting):
                if _exclude(each, each.default, other, value, groups):
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
            effective[each.id] = copy.deepcopy(added[each.id])
    return effective, withdrawn


def _find_related(pipeline: Pipeline) -> set[str]:
    """Return the inputs that exclude others, or that others exclude."""
    found: set[str] = set()
    for each in pipeline.inputs:
        disabled = {*each.disables, *(other for named in each.value_disables.values() for other in named)}
        if disabled:
            found |= {each.id, *disabled}
    return found.union(*(group.members for group in pipeline.groups if group.mutually_exclusive))


def _exclude(
    one: Input, one_value: Any, other: Input, other_value: Any, groups: Sequence[frozenset[str]]
) -> bool:
    """Return whether two inputs with values exclude each other; a flag that is off excludes nothing."""
    if one.id == other.id or _is_off(one, one_value) or _is_off(other, other_value):
        return False
    return (
        disables(one, one_value, other.id)
        or disables(other, other_value, one.id)
        or any({one.id, other.id} <= group for group in groups)
    )


def _is_off(tool_input: Input, value: Any) -> bool:
    return tool_input.kind == "Flag" and value is not True


def _is_disabled(tool_input: Input, others: Sequence[Input]) -> bool:
    return any(
        disables(other, other.default, tool_input.id)
        for other in others
        if other is not tool_input and not _is_off(other, other.default)
    )


def disables(tool_input: Input, value: Any, identifier: str) -> bool:
    """Return whether this value disables the input of that id."""
    return identifier in tool_input.disables or any(
        identifier in tool_input.value_disables.get(str(entry), ()) for entry in _entries(value)
    )


@dataclass(frozen=True, slots=True)
class Invocation:
    """A checked invocation. `values` includes the defaults that apply, without absent inputs; `as_written` has the values as written.

    `file_ids` are the inputs that name files outside the pipeline's image. `withdrawn` are the inputs whose default does not apply,
    each with the input that excludes it.
    """

    values: Mapping[str, Any]
    as_written: Mapping[str, Any] = field(compare=False)
    file_ids: tuple[str, ...] = ()
    withdrawn: Mapping[str, str] = field(default_factory=dict, compare=False)

    def file_inputs(self) -> list[tuple[str, str | list[str]]]:
        """Return the values of kind File: input id, and the path (or paths, for a list) as written."""
        return [(each, self.values[each]) for each in self.file_ids]


@dataclass(frozen=True, slots=True)
class Need:
    """A requirement: one of `members` (inputs or groups) needs a value, because of the input or group `path`."""

    path: str
    members: tuple[str, ...]
    message: str

    def to_problem(self) -> Problem:
        """Return the problem to report while it is not met."""
        return Problem(self.path, self.message)


def read_invocation(pipeline: Pipeline, path: Path) -> Invocation:
    """Read and check the invocation in a file; problems are reported with file and line.

    Raises `NotFoundError`, `UsageError` and `InvocationError`.
    """
    raw = read_file_bytes(path)
    values = read_json(raw, str(path))
    problems = find_invocation_problems(pipeline, values)
    if problems:
        placed = place_problems(problems, raw)
        raise InvocationError(placed, reference=pipeline.reference, subject=str(path))
    return check_invocation(pipeline, values)


def check_invocation(pipeline: Pipeline, values: Any) -> Invocation:
    """Check an invocation and add the defaults that apply; raises `InvocationError` with every problem at once.

    Stricter than the reference, which accepts `{}` unseen and knows neither value-requires, value-disables
    nor all-or-none groups. In both, a default that applies counts as a value.
    """
    problems = find_invocation_problems(pipeline, values)
    if problems:
        raise InvocationError(problems, reference=pipeline.reference)
    effective = add_defaults(pipeline, values)
    files = tuple(
        each.id
        for each in pipeline.inputs
        if each.kind == "File"
        and each.id in effective
        and not is_in_image(pipeline, each, effective[each.id])
    )
    return Invocation(effective, dict(values), files, find_withdrawn(pipeline, values))


def find_invocation_problems(pipeline: Pipeline, values: Any) -> list[Problem]:
    """Return every problem of an invocation."""
    if not isinstance(values, Mapping):
        return [Problem("", "an invocation must be a JSON object of input ids and values")]
    problems = find_rule_problems(pipeline, values)
    own_schema = pipeline.document.get("invocation-schema")
    if own_schema and not problems:
        problems = list(dict.fromkeys(find_schema_problems(own_schema, add_defaults(pipeline, values))))
    return problems


def find_unknown(pipeline: Pipeline, identifiers: Iterable[str], *, line: int = 0) -> Iterator[Problem]:
    """Yield a problem for each name that is not an input of the pipeline; `line` is that of a table."""
    known = [each.id for each in pipeline.inputs]
    for identifier in identifiers:
        if identifier not in known:
            suggestion = nearest(identifier[:100], known)
            yield Problem(
                identifier,
                f"no such input; is it {suggestion}?" if suggestion else "no such input",
                line=line,
            )


def _find_missing(pipeline: Pipeline, effective: Mapping[str, Any]) -> Iterator[Problem]:
    for each in pipeline.inputs:
        if not each.optional and each.id not in effective:
            yield Problem(each.id, "is required")


def find_needs(pipeline: Pipeline, values: Mapping[str, Any]) -> list[Need]:
    """Return the unmet requirements of the values, in the order of inputs and groups, without required inputs."""
    effective = add_defaults(pipeline, values)
    active = [each for each in pipeline.inputs if has_value(pipeline, each.id, effective)]
    return [
        *(need for each in active for need in _find_needs_of(pipeline, each, effective)),
        *(need for group in pipeline.groups for need in _find_group_needs(pipeline, group, effective)),
    ]


def find_rule_problems(pipeline: Pipeline, values: Mapping[str, Any]) -> list[Problem]:
    """Return the problems by the rules of inputs and groups, without the author's own schema, which is for whole invocations."""
    effective = add_defaults(pipeline, values)
    own_schema = pipeline.document.get("invocation-schema")
    # As in the reference, an author's own schema replaces the rules of inputs for single values.
    find_problems = find_shape_problems if own_schema else find_input_problems
    problems = [
        *find_unknown(pipeline, values),
        *_find_missing(pipeline, effective),
        *(
            problem
            for each in pipeline.inputs
            if each.id in effective
            for problem in find_problems(each, effective[each.id])
        ),
        *_find_conflicts(pipeline, effective),
        *(
            problem
            for group in pipeline.groups
            for problem in _find_group_problems(pipeline, group, effective)
        ),
    ]
    return [_with_default_hint(pipeline, values, problem) for problem in dict.fromkeys(problems)]


def _with_default_hint(pipeline: Pipeline, values: Mapping[str, Any], problem: Problem) -> Problem:
    """Return the problem, with advice where it is caused by a default."""
    tool_input = pipeline.find_input(problem.path.partition("[")[0])
    if tool_input is None or tool_input.default is None or not tool_input.optional or tool_input.id in values:
        return problem
    return replace(problem, instead=f'its default applies; "{tool_input.id}": null withdraws it')


def find_lasting_problems(
    pipeline: Pipeline, before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[Problem]:
    """Return the problems of `after` that `before` did not have, and that further values cannot solve."""
    effective = add_defaults(pipeline, after)
    passing = [
        *find_rule_problems(pipeline, before),
        *(need.to_problem() for need in find_needs(pipeline, after)),
        *_find_missing(pipeline, effective),
    ]
    known = {(each.path, each.message) for each in passing}
    return [each for each in find_rule_problems(pipeline, after) if (each.path, each.message) not in known]


def is_active(pipeline: Pipeline, identifier: str, values: Mapping[str, Any]) -> bool:
    """Return whether an input has a value, also by default, or a flag is set; for a group, whether one of its members has."""
    return has_value(pipeline, identifier, add_defaults(pipeline, values))


def _find_conflicts(pipeline: Pipeline, effective: Mapping[str, Any]) -> Iterator[Problem]:
    for each in pipeline.inputs:
        if not has_value(pipeline, each.id, effective):
            continue
        yield from (need.to_problem() for need in _find_needs_of(pipeline, each, effective))
        for other in each.disables:
            if has_value(pipeline, other, effective):
                yield Problem(each.id, f"cannot be given together with {other}")
        for value in _entries(effective[each.id]):
            for other in each.value_disables.get(str(value), ()):
                if has_value(pipeline, other, effective):
                    yield Problem(each.id, f"the value {value} cannot be given together with {other}")


def _find_needs_of(pipeline: Pipeline, each: Input, effective: Mapping[str, Any]) -> Iterator[Need]:
    for other in each.requires:
        if not has_value(pipeline, other, effective):
            yield Need(each.id, (other,), f"requires {other}, which is missing")
    for value in _entries(effective[each.id]):
        for other in each.value_requires.get(str(value), ()):
            if not has_value(pipeline, other, effective):
                yield Need(each.id, (other,), f"the value {value} requires {other}, which is missing")


def _entries(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _find_group_needs(pipeline: Pipeline, group: Group, effective: Mapping[str, Any]) -> Iterator[Need]:
    active = [member for member in group.members if has_value(pipeline, member, effective)]
    if group.one_is_required and not active:
        yield Need(group.id, group.members, f"one of these is required: {', '.join(group.members)}")
    if group.all_or_none and active and len(active) < len(group.members):
        absent = [member for member in group.members if member not in active]
        message = f"given together or not at all: {', '.join(active)} without {', '.join(absent)}"
        yield Need(group.id, tuple(absent[:1]), message)


def _find_group_problems(pipeline: Pipeline, group: Group, effective: Mapping[str, Any]) -> Iterator[Problem]:
    active = [member for member in group.members if has_value(pipeline, member, effective)]
    if group.mutually_exclusive and len(active) > 1:
        yield Problem(group.id, f"only one of these can be given, not {', '.join(active)}")
    yield from (need.to_problem() for need in _find_group_needs(pipeline, group, effective))
