"""Read a Boutiques descriptor: strict JSON, checked completely, then typed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from hibali.documents import canonical_digest, find_repeated, read_json, written_path
from hibali.errors import UsageError
from registry import advice
from registry.advice import read_suggested
from registry.boutiques_schema import find_refusals, find_shape_problems
from registry.command_line import render_script
from registry.descriptor_rules import find_rule_problems
from registry.invocation import Invocation
from registry.pipeline import (
    Container,
    EnvironmentVariable,
    ErrorCode,
    Group,
    Input,
    OutputFile,
    Pipeline,
    catalogue_name,
    catalogue_version,
    name_of_title,
)
from registry.problems import DescriptorError, Problem, place_problems

_Part = TypeVar("_Part", Input, OutputFile, Group, Container, EnvironmentVariable, ErrorCode)
_LARGEST_DOUBLE = sys.float_info.max
_MOST_ITEMS, _MOST_TOGETHER = 1_000, 10_000  # of one list, and of all lists of a descriptor
_LARGEST_EXACT = 2**53  # larger integers are not exact as IEEE doubles, the only numbers of RFC 8785


def read_descriptor(raw: bytes, subject: str, name: str | None = None) -> Pipeline:
    """Read the pipeline in `raw`, named after the descriptor unless `name` is given.

    Raises `JsonProblemError`, `DescriptorError` with every problem, and `UsageError` for an invalid name, or a value without
    a canonical form.
    """
    document = read_json(raw, subject)
    problems = find_problems(document)
    if problems:
        raise DescriptorError(place_problems(problems, raw), subject=subject)
    try:
        return make_pipeline(document, raw, name)
    except UsageError as error:  # the error names the key or the value, but not the file
        location = f"{subject}: {error.subject}" if error.subject else subject
        raise UsageError(error.code, error.message, subject=location, hint=error.hint) from None


def find_problems(document: Any) -> list[Problem]:
    """Return every problem that makes the descriptor invalid. The reference validator runs last."""
    if not isinstance(document, dict):
        return [Problem("", "a descriptor is a JSON object")]
    unusable = [*_find_unwritable(document, ()), *_find_excessive(document)]
    if unusable:
        return unusable
    shape = find_shape_problems(document)
    rules = find_rule_problems(document)
    if shape:
        return shape + [each for each in rules if each.path not in {one.path for one in shape}]
    return rules + [each for each in find_refusals(document) if not _is_covered(each, rules)]


def _find_unwritable(value: Any, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """Find values that JSON can hold but that have no canonical form: half surrogate pairs, and numbers beyond doubles."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(key, str) and not _is_text(key):
                yield Problem(
                    written_path((*path, key)),
                    "this key holds half a surrogate pair, which is not a character",
                )
            yield from _find_unwritable(item, (*path, key))
    elif isinstance(value, str) and not _is_text(value):
        yield Problem(written_path(path), "holds half a surrogate pair, which is not a character")
    elif isinstance(value, int | float) and not -_LARGEST_DOUBLE <= value <= _LARGEST_DOUBLE:
        yield Problem(written_path(path), "is too large for a number")


def _find_excessive(document: Mapping[str, Any]) -> list[Problem]:
    """Find lists that are too long: the rules compare their items with each other. The largest known tools have some hundred inputs."""
    counts = {key: _count_items(value) for key, value in document.items() if key != "custom"}
    total = sum(counts.values())
    found = [
        Problem(key, f"has {len(document[key]):,} entries; at most {_MOST_ITEMS:,} are possible")
        for key in counts
        if isinstance(document[key], list) and len(document[key]) > _MOST_ITEMS
    ]
    if total > _MOST_TOGETHER and not found:
        largest = max(counts, key=lambda key: counts[key])
        message = f"all lists together have {total:,} items, most of them here; at most {_MOST_TOGETHER:,} are possible"
        found.append(Problem(largest, message))
    return found


def _count_items(value: Any) -> int:
    """Return how many items all lists in a value have."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(_count_items(each) for each in inside) + (len(value) if isinstance(value, list) else 0)


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def find_advice(raw: bytes, subject: str) -> list[Problem]:
    """Return advice on a valid descriptor, by line. Raises `JsonProblemError`."""
    document = read_json(raw, subject)
    known = [*advice.find_advice(document), *_advise_on_use(document)] if isinstance(document, dict) else []
    found = place_problems(known, raw)
    return sorted([*found, *find_repeated_advice(raw)], key=lambda each: each.line)


def _advise_on_use(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Advise on defaults that hibali refuses where the command line has them, and on patterns that the tool gets as they are."""
    try:
        pipeline = make_pipeline(document, b"")
    except UsageError:
        return
    for number, each in enumerate(pipeline.inputs):
        if each.default is None:
            continue
        try:
            render_script(pipeline, Invocation({each.id: each.default}, {}), work_folder="/work")
        except UsageError as problem:
            if problem.subject != each.id:
                continue
            message = f'the default of "{each.id}" is refused: {problem.message}'
            instead = "give another default, or move the key out of the quotes"
            yield Problem(f"inputs[{number}].default-value", message, instead, advice=True)
    for number, output in enumerate(pipeline.outputs):
        if output.value_key and output.value_key in pipeline.command_template and "*" in output.path_template:
            message = f'the tool gets the pattern of "{output.id}" as it is, not the names that match it'
            instead = "give the output a path without wildcards, or remove its value-key"
            yield Problem(f"output-files[{number}].path-template", message, instead, advice=True)


def find_repeated_advice(raw: bytes) -> list[Problem]:
    """Return advice on each key that a JSON text has twice with the same value."""
    return [
        Problem(
            written_path(each.path),
            f"this key is repeated; it has the same value on line {each.first_line}",
            "remove one of the two",
            line=each.line,
            advice=True,
        )
        for each in find_repeated(raw)
    ]


def _is_covered(refusal: Problem, rules: list[Problem]) -> bool:
    """Return whether one of our rules covers a refusal: same message, and same place or one inside. Any rule covers a crash."""
    if not refusal.path:
        return bool(rules)
    return any(
        each.message == refusal.message
        or each.path == refusal.path
        or each.path.startswith(f"{refusal.path}.")
        for each in rules
    )


def digest_document(document: Any) -> str:
    """Return the sha256 of the canonical JSON; integers beyond 2**53 are written as doubles (RFC 8785)."""
    return canonical_digest(_with_doubles(document))


def make_pipeline(document: Mapping[str, Any], raw: bytes, name: str | None = None) -> Pipeline:
    """Make a pipeline from a document that is known to be valid."""
    digest = digest_document(document)
    container = document.get("container-image")
    return Pipeline(
        name=name_of_title(document["name"]) if name is None else catalogue_name(name),
        version=catalogue_version(document["tool-version"]),
        digest=digest,
        title=document["name"],
        description=document["description"],
        command_template=document["command-line"],
        shell=document.get("shell", "/bin/sh").strip(),
        inputs=tuple(_make(Input, each) for each in document["inputs"]),
        outputs=tuple(_make(OutputFile, each) for each in document.get("output-files", ())),
        groups=tuple(_make(Group, each) for each in document.get("groups", ())),
        container=None if container is None else _make(Container, container),
        environment=tuple(
            _make(EnvironmentVariable, each) for each in document.get("environment-variables", ())
        ),
        resources=read_suggested(document),
        error_codes=tuple(_make(ErrorCode, each) for each in document.get("error-codes", ())),
        tags=document.get("tags", {}),
        raw=raw,
        document=document,
    )


# Keys of the descriptor that differ from the name of the field with hyphens.
_KEYS = {
    "choices": "value-choices",
    "conditions": "conditional-path-template",
    "default": "default-value",
    "disables": "disables-inputs",
    "flag": "command-line-flag",
    "flag_separator": "command-line-flag-separator",
    "hash": "container-hash",
    "is_list": "list",
    "kind": "type",
    "maximum_entries": "max-list-entries",
    "minimum_entries": "min-list-entries",
    "options": "container-opts",
    "requires": "requires-inputs",
    "stripped_extensions": "path-template-stripped-extensions",
}


def _make(kind: type[_Part], section: Mapping[str, Any]) -> _Part:
    """Make one part of a pipeline from the keys of its section; absent keys have the defaults of the class."""
    keys = {field.name: _KEYS.get(field.name, field.name.replace("_", "-")) for field in fields(kind)}
    return kind(**{name: _typed(name, section[key]) for name, key in keys.items() if key in section})


def _typed(name: str, value: Any) -> Any:
    if name == "conditions":
        return tuple(pair for each in value for pair in each.items())
    if name in {"value_requires", "value_disables"}:
        # the schema does not restrict these values, but the validator read them as lists of ids
        return {choice: tuple(str(each) for each in ids) for choice, ids in value.items()}
    return tuple(value) if isinstance(value, list) and name != "default" else value


def _with_doubles(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_doubles(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_doubles(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _LARGEST_EXACT:
        try:
            return float(value)
        except OverflowError:
            raise UsageError("not-canonical", "a number is too large", subject=str(value)[:40]) from None
    return value
