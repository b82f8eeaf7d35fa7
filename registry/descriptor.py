"""Read a Boutiques descriptor: strict JSON, checked completely, then typed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hibali.documents import canonical_digest, find_repeated, read_json, written_path
from hibali.errors import UsageError
from registry import advice
from registry.advice import read_suggested
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
)
from registry.problems import DescriptorError, Problem, place_problems

_LARGEST_DOUBLE = sys.float_info.max
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
    from registry.boutiques_schema import (  # start-up: slow; stored pipelines need no check
        find_refusals,
        find_shape_problems,
    )
    from registry.descriptor_rules import find_rule_problems  # start-up: slow; stored pipelines need no check

    if not isinstance(document, dict):
        return [Problem("", "a descriptor is a JSON object")]
    unwritable = list(_find_unwritable(document, ()))
    if unwritable:
        return unwritable
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


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def find_advice(raw: bytes, subject: str) -> list[Problem]:
    """Return advice on a valid descriptor, by line. Raises `JsonProblemError`."""
    document = read_json(raw, subject)
    found = place_problems(advice.find_advice(document), raw) if isinstance(document, dict) else []
    return sorted([*found, *find_repeated_advice(raw)], key=lambda each: each.line)


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
        name=catalogue_name(document["name"] if name is None else name),
        version=catalogue_version(document["tool-version"]),
        digest=digest,
        title=document["name"],
        description=document["description"],
        command_template=document["command-line"],
        shell=document.get("shell", "/bin/sh").strip(),
        inputs=tuple(_make_input(each) for each in document["inputs"]),
        outputs=tuple(_make_output(each) for each in document.get("output-files", ())),
        groups=tuple(_make_group(each) for each in document.get("groups", ())),
        container=None if container is None else _make_container(container),
        environment=tuple(
            EnvironmentVariable(each["name"], each["value"])
            for each in document.get("environment-variables", ())
        ),
        resources=read_suggested(document),
        error_codes=tuple(
            ErrorCode(each["code"], each["description"]) for each in document.get("error-codes", ())
        ),
        tags=document.get("tags", {}),
        raw=raw,
        document=document,
    )


def _make_input(fields: Mapping[str, Any]) -> Input:
    choices = fields.get("value-choices")
    return Input(
        id=fields["id"],
        name=fields["name"],
        kind=fields["type"],
        description=fields.get("description", ""),
        value_key=fields.get("value-key", ""),
        optional=fields.get("optional", False),
        is_list=fields.get("list", False),
        list_separator=fields.get("list-separator", " "),
        flag=fields.get("command-line-flag", ""),
        flag_separator=fields.get("command-line-flag-separator", " "),
        default=fields.get("default-value"),
        choices=None if choices is None else tuple(choices),
        integer=fields.get("integer", False),
        minimum=fields.get("minimum"),
        maximum=fields.get("maximum"),
        exclusive_minimum=fields.get("exclusive-minimum", False),
        exclusive_maximum=fields.get("exclusive-maximum", False),
        minimum_entries=fields.get("min-list-entries"),
        maximum_entries=fields.get("max-list-entries"),
        requires=tuple(fields.get("requires-inputs", ())),
        disables=tuple(fields.get("disables-inputs", ())),
        value_requires=_make_lists(fields.get("value-requires", {})),
        value_disables=_make_lists(fields.get("value-disables", {})),
        uses_absolute_path=fields.get("uses-absolute-path", False),
    )


def _make_output(fields: Mapping[str, Any]) -> OutputFile:
    return OutputFile(
        id=fields["id"],
        name=fields["name"],
        description=fields.get("description", ""),
        value_key=fields.get("value-key", ""),
        path_template=fields.get("path-template", ""),
        conditions=tuple(
            (condition, template)
            for each in fields.get("conditional-path-template", ())
            for condition, template in each.items()
        ),
        stripped_extensions=tuple(fields.get("path-template-stripped-extensions", ())),
        is_list=fields.get("list", False),
        optional=fields.get("optional", False),
        flag=fields.get("command-line-flag", ""),
        flag_separator=fields.get("command-line-flag-separator", " "),
        uses_absolute_path=fields.get("uses-absolute-path", False),
        file_template=tuple(fields.get("file-template", ())),
    )


def _make_group(fields: Mapping[str, Any]) -> Group:
    return Group(
        id=fields["id"],
        name=fields["name"],
        members=tuple(fields["members"]),
        mutually_exclusive=fields.get("mutually-exclusive", False),
        one_is_required=fields.get("one-is-required", False),
        all_or_none=fields.get("all-or-none", False),
    )


def _make_container(fields: Mapping[str, Any]) -> Container:
    return Container(
        kind=fields["type"],
        image=fields.get("image", ""),
        index=fields.get("index", ""),
        url=fields.get("url", ""),
        hash=fields.get("container-hash", ""),
        working_directory=fields.get("working-directory", ""),
        entrypoint=fields.get("entrypoint", False),
        options=tuple(fields.get("container-opts", ())),
    )


def _make_lists(fields: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Convert to lists of ids; the schema does not restrict these values, but the validator read them as such."""
    return {choice: tuple(str(each) for each in ids) for choice, ids in fields.items()}


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
