"""Read a Boutiques descriptor: strict JSON, checked completely, then typed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hibali.documents import canonical_digest, find_repeated, read_json, written_path
from hibali.errors import UsageError
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
_LARGEST_EXACT = 2**53  # integers beyond it are not exact as IEEE doubles, which is all RFC 8785 knows


def read_descriptor(raw: bytes, subject: str, name: str | None = None) -> Pipeline:
    """The pipeline in `raw`, named after the descriptor unless `name` is given.

    Raises `JsonProblemError`, `DescriptorError` with every problem, and `UsageError` for a name that is none, or a value that has
    no canonical form.
    """
    document = read_json(raw, subject)
    problems = find_problems(document)
    if problems:
        raise DescriptorError(place_problems(problems, raw), subject=subject)
    try:
        return make_pipeline(document, raw, name)
    except UsageError as error:  # it knows the key or the value, and not the file
        where = f"{subject}: {error.subject}" if error.subject else subject
        raise UsageError(error.code, error.message, subject=where, hint=error.hint) from None


def find_problems(document: Any) -> list[Problem]:
    """Everything that makes the document no valid descriptor. The reference has the last word of what nothing is said against."""
    from registry.boutiques_schema import find_refusals, find_shape_problems
    from registry.descriptor_rules import find_rule_problems

    if not isinstance(document, dict):
        return [Problem("", "a descriptor is a JSON object")]
    unwritable = list(_find_unwritable(document, ()))
    if unwritable:
        return unwritable
    shape = find_shape_problems(document)
    rules = find_rule_problems(document)
    if shape:
        return shape + [each for each in rules if each.path not in {one.path for one in shape}]
    return rules + [each for each in find_refusals(document) if not _is_said(each, rules)]


def _find_unwritable(value: Any, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """What JSON can say and nobody can write again, so that it has no digest: half characters, and numbers beyond doubles."""
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
    """What is better written otherwise in a descriptor that is valid, by its lines. Raises `JsonProblemError`."""
    from registry import advice

    document = read_json(raw, subject)
    found = place_problems(advice.find_advice(document), raw) if isinstance(document, dict) else []
    return sorted([*found, *find_repeated_advice(raw)], key=lambda each: each.line)


def find_repeated_advice(raw: bytes) -> list[Problem]:
    """Advice on each key that a JSON text has twice with the same value."""
    return [
        Problem(
            written_path(each.path),
            f"this key is repeated; it has the same value on line {each.first_line}",
            "take one of the two away",
            line=each.line,
            advice=True,
        )
        for each in find_repeated(raw)
    ]


def _is_said(refusal: Problem, rules: list[Problem]) -> bool:
    """Whether a rule of ours says it: in the same words, of the same place or something in it. A crash is said by anything."""
    if not refusal.path:
        return bool(rules)
    return any(
        each.message == refusal.message
        or each.path == refusal.path
        or each.path.startswith(f"{refusal.path}.")
        for each in rules
    )


def digest_document(document: Any) -> str:
    """sha256 of the canonical JSON; integers beyond 2**53 are written as the doubles RFC 8785 takes them for."""
    return canonical_digest(_with_doubles(document))


def make_pipeline(document: Mapping[str, Any], raw: bytes, name: str | None = None) -> Pipeline:
    """The typed values of a document that is known to be valid."""
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


def _make_input(given: Mapping[str, Any]) -> Input:
    choices = given.get("value-choices")
    return Input(
        id=given["id"],
        name=given["name"],
        kind=given["type"],
        description=given.get("description", ""),
        value_key=given.get("value-key", ""),
        optional=given.get("optional", False),
        is_list=given.get("list", False),
        list_separator=given.get("list-separator", " "),
        flag=given.get("command-line-flag", ""),
        flag_separator=given.get("command-line-flag-separator", " "),
        default=given.get("default-value"),
        choices=None if choices is None else tuple(choices),
        integer=given.get("integer", False),
        minimum=given.get("minimum"),
        maximum=given.get("maximum"),
        exclusive_minimum=given.get("exclusive-minimum", False),
        exclusive_maximum=given.get("exclusive-maximum", False),
        minimum_entries=given.get("min-list-entries"),
        maximum_entries=given.get("max-list-entries"),
        requires=tuple(given.get("requires-inputs", ())),
        disables=tuple(given.get("disables-inputs", ())),
        value_requires=_make_lists(given.get("value-requires", {})),
        value_disables=_make_lists(given.get("value-disables", {})),
        uses_absolute_path=given.get("uses-absolute-path", False),
    )


def _make_output(given: Mapping[str, Any]) -> OutputFile:
    return OutputFile(
        id=given["id"],
        name=given["name"],
        description=given.get("description", ""),
        value_key=given.get("value-key", ""),
        path_template=given.get("path-template", ""),
        conditions=tuple(
            (condition, template)
            for each in given.get("conditional-path-template", ())
            for condition, template in each.items()
        ),
        stripped_extensions=tuple(given.get("path-template-stripped-extensions", ())),
        is_list=given.get("list", False),
        optional=given.get("optional", False),
        flag=given.get("command-line-flag", ""),
        flag_separator=given.get("command-line-flag-separator", " "),
        uses_absolute_path=given.get("uses-absolute-path", False),
        file_template=tuple(given.get("file-template", ())),
    )


def _make_group(given: Mapping[str, Any]) -> Group:
    return Group(
        id=given["id"],
        name=given["name"],
        members=tuple(given["members"]),
        mutually_exclusive=given.get("mutually-exclusive", False),
        one_is_required=given.get("one-is-required", False),
        all_or_none=given.get("all-or-none", False),
    )


def _make_container(given: Mapping[str, Any]) -> Container:
    return Container(
        kind=given["type"],
        image=given.get("image", ""),
        index=given.get("index", ""),
        url=given.get("url", ""),
        hash=given.get("container-hash", ""),
        working_directory=given.get("working-directory", ""),
        entrypoint=given.get("entrypoint", False),
        options=tuple(given.get("container-opts", ())),
    )


def _make_lists(given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The schema leaves these values open; the validator has walked them as lists of ids."""
    return {choice: tuple(str(each) for each in ids) for choice, ids in given.items()}


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
