"""Validate with the boutiques package, its schema and its upgrade of 0.4; the only module that imports it.

The validator changes its arguments, prints, may exit the process and fails with a traceback for some documents
(boutiques 0.5.33). It gets a copy, its output is discarded, and its exceptions become messages.
Nothing here touches the network or evaluates an expression.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from hibali.documents import written_path
from hibali.errors import UsageError
from hibali.text import nearest
from registry.problems import Problem
from registry.styx import STYX, without_styx

OLD, NEW = "0.4", "0.5"


def upgrade_document(document: Any, subject: str) -> tuple[dict[str, Any], list[Problem]]:
    """Convert a descriptor of schema 0.4, or of Styx's extension of 0.5, to 0.5, keeping the order of its keys.

    Also returns what was lost or assumed. Raises `UsageError` for any other schema.
    """
    version = document.get("schema-version") if isinstance(document, dict) else None
    if version == STYX:
        return without_styx(document)
    if version not in (OLD, float(OLD)):
        raise UsageError(
            "not-schema-04",
            f'only descriptors with "schema-version": "{OLD}" or "{STYX}" can be upgraded',
            subject=subject,
            hint="To check a descriptor of another schema: hibali pipelines validate FILE",
        )
    upgraded = {**document, "schema-version": NEW}
    container = document.get("container-image")
    if isinstance(container, dict):
        upgraded["container-image"] = _upgrade_container(container)
    if "walltime-estimate" in upgraded:
        suggested = upgraded.get("suggested-resources")
        known = suggested if isinstance(suggested, dict) else {}
        upgraded["suggested-resources"] = {**known, "walltime-estimate": upgraded.pop("walltime-estimate")}
    return upgraded, []


def _upgrade_container(container: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the container: in 0.4, a Singularity image was a URL, and a Docker index could be one."""
    kind, url, index = container.get("type"), container.get("url"), container.get("index")
    if kind == "singularity" and isinstance(url, str):
        scheme, separator, image = url.rpartition("://")
        others = {key: value for key, value in container.items() if key != "url"}
        return {**others, "image": image, **({"index": f"{scheme}://"} if separator else {})}
    if kind == "docker" and isinstance(index, str):
        return {**container, "index": index.rpartition("://")[2]}
    return dict(container)


_LONGEST_MESSAGE = 400
_QUOTED = re.compile(r'"([^"]*)"')
_WORDED = re.compile(r"^\s*(\w+Error): *(.*)$", re.DOTALL)
_JSON_TYPES = {
    "string": "a text in quotes",
    "boolean": "true or false, without quotes",
    "number": "a number, without quotes",
    "integer": "a whole number, without quotes",
    "array": "a list in [ ]",
    "object": "an object in { }",
}
_ALTERNATIVES = {  # messages for alternatives in the schema, by keyword and by the path of the value without its indices
    ("oneOf", "output-files"): "exactly one of path-template and conditional-path-template is required",
    (
        "anyOf",
        "output-files",
    ): "a configuration file (file-template) needs a list of lines and cannot be a list of files",
    (
        "oneOf",
        "container-image",
    ): "a docker or singularity image needs type and image; a rootfs needs type and url; no other keys are allowed",
    ("anyOf", "inputs"): "an input of type Flag cannot be a list",
    ("oneOf", "inputs.value-choices"): "a choice must be a text or a number",
    ("anyOf", "tests.assertions"): "assertions need an exit-code or output-files",
}


def find_schema_problems(schema: Any, values: Any) -> list[Problem]:
    """Check values against an author's own JSON schema; a reference to another document is a problem and is never fetched."""
    import jsonschema  # start-up: slow; stored pipelines need no check
    from jsonschema.validators import validator_for  # start-up: slow; stored pipelines need no check
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable  # start-up: slow; stored pipelines need no check

    kind = _with_fast_uniqueness(validator_for(schema, default=jsonschema.Draft4Validator))
    try:
        kind.check_schema(schema)
        found = list(kind(schema, registry=REGISTRY).iter_errors(values))
    except jsonschema.SchemaError as problem:
        return [Problem("invocation-schema", _shorten(f"is not a valid JSON schema: {problem.message}"))]
    except (Unresolvable, RecursionError, ValueError, re.error) as problem:
        return [Problem("invocation-schema", _shorten(f"cannot be followed: {problem}"))]
    return [problem for each in found for problem in _as_problems(each)]


def find_shape_problems(document: Mapping[str, Any]) -> list[Problem]:
    """Check a descriptor against the Boutiques schema and return every problem."""
    found = sorted(
        _descriptor_validator().iter_errors(document), key=lambda each: written_path(each.absolute_path)
    )
    problems = [problem for each in found if not _is_consequence(each) for problem in _as_problems(each)]
    return list(dict.fromkeys(problems))


def _is_consequence(error: Any) -> bool:
    """Return whether another problem names the cause: an input of unknown type, or with a wrong `list`, also fails the rules of flags."""
    if error.validator != "anyOf" or _section(error) != "inputs":
        return False
    return error.instance.get("type") != "Flag" or error.instance.get("list") is not True


def _section(error: Any) -> str:
    return ".".join(each for each in error.absolute_path if isinstance(each, str))


@functools.cache
def _descriptor_validator() -> Any:
    import boutiques  # start-up: slow; stored pipelines need no check
    import jsonschema  # start-up: slow; stored pipelines need no check

    schema = Path(boutiques.__file__).parent / "schema" / "descriptor.schema.json"
    return _with_fast_uniqueness(jsonschema.Draft4Validator)(json.loads(schema.read_bytes()))


def _with_fast_uniqueness(kind: Any) -> Any:
    """Return a validator whose `uniqueItems` takes linear time; jsonschema compares each object with every other."""
    from jsonschema import ValidationError  # start-up: slow; stored pipelines need no check
    from jsonschema.validators import extend  # start-up: slow; stored pipelines need no check

    def check(validator: Any, wanted: Any, items: Any, schema: Any) -> Iterator[Any]:
        del validator, schema
        if wanted and isinstance(items, list):
            written = {json.dumps(each, sort_keys=True) for each in items}
            if len(written) < len(items):
                yield ValidationError(f"{items!r} has non-unique elements")

    return extend(kind, {"uniqueItems": check})  # type: ignore[no-untyped-call]


def find_refusals(document: Mapping[str, Any]) -> list[Problem]:
    """Run the reference validator on a document that matches the schema, and return its errors or its failure."""
    from boutiques import validator  # start-up: slow; stored pipelines need no check

    copied = copy.deepcopy(dict(document))
    if copied.get("container-image", {}).get("type") == "rootfs":
        # the validator reads an image name from it; the schema has checked the remaining keys
        del copied["container-image"]
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            mock.patch.object(validator, "validate"),  # it would check the schema again, in quadratic time
        ):
            validator.validate_descriptor(copied)
    except validator.DescriptorValidationError as problem:
        return list(dict.fromkeys(_from_line(line, document) for line in _lines(problem)))
    except (Exception, SystemExit) as problem:  # noqa: BLE001  # any exception rejects the document
        return [Problem("", _shorten(f"the reference validator failed: {_worded(problem)}"))]
    return []


def _lines(problem: Exception) -> list[str]:
    """Yield one line for each broken rule; ids and keys may hold newlines, so a line without a kind continues the one before."""
    lines: list[str] = []
    for line in str(getattr(problem, "message", problem)).split("\n"):
        if _WORDED.match(line) or not lines:
            lines.append(line)
        else:
            lines[-1] += "\n" + line
    return lines


def _from_line(line: str, document: Mapping[str, Any]) -> Problem:
    found = _WORDED.match(line)
    if found is None:
        return Problem("", _shorten(line.strip()))
    kind, message = found.groups()
    names = _QUOTED.findall(message)
    return Problem(_place(kind, names[0] if names else "", document), _shorten(message.strip()))


def _place(kind: str, name: str, document: Mapping[str, Any]) -> str:
    """Return the path in the document of the element that a rule's message begins with."""
    sections = {
        "InputError": ("inputs", "id"),
        "OutputError": ("output-files", "id"),
        "GroupError": ("groups", "id"),
        "TestError": ("tests", "name"),
    }
    if kind == "ContainerError":
        return "container-image"
    if kind in {"KeyError", "MutExError"}:
        return _find(document, ("inputs", "output-files"), "value-key", name, ".value-key")
    if kind == "IdError":
        return _find(document, ("inputs", "output-files", "groups"), "id", name, ".id")
    if kind in sections:
        section, key = sections[kind]
        return _find(document, (section,), key, name, "") or section
    return ""


def _find(document: Mapping[str, Any], sections: Iterable[str], key: str, value: str, suffix: str) -> str:
    for section in sections:
        for number, item in enumerate(document.get(section) or []):
            if isinstance(item, dict) and item.get(key) == value:
                return f"{section}[{number}]{suffix}"
    return ""


def _as_problems(error: Any) -> list[Problem]:
    location = list(error.absolute_path)
    place = written_path(location)
    known = _ALTERNATIVES.get((error.validator, _section(error)))
    if known:
        return [Problem(place, known, _instead_of_choice(error))]
    if _section(error) == "inputs.type" and isinstance(error.instance, dict | list):
        return [
            Problem(place, "an input that is a command of its own, as in Styx, is not possible in Boutiques")
        ]
    if error.validator == "additionalProperties" and isinstance(error.schema.get("properties"), dict):
        return _unknown_keys(location, error.instance, error.schema["properties"])
    return [Problem(place, _shorten(str(error.message)), _instead(error, location))]


def _unknown_keys(
    location: list[str | int], keys: Mapping[str, Any], known: Mapping[str, Any]
) -> list[Problem]:
    found = []
    for key in keys:
        if key not in known:
            suggestion = nearest(key, [each for each in known if each not in keys])
            instead = f"is it {suggestion}?" if suggestion else "put your own keys below `custom`"
            found.append(Problem(written_path([*location, key]), _shorten(f"unknown key {key!r}"), instead))
    return found


def _instead(error: Any, location: list[str | int]) -> str:
    if location == ["schema-version"]:
        return _instead_of_version(error.instance)
    if error.validator == "enum":
        return f"one of {', '.join(str(each) for each in error.validator_value)}"
    if error.validator in {"minLength", "minItems"}:
        return "write a value, or remove the key if it is optional"
    if error.validator == "type":
        return f"write {_JSON_TYPES.get(str(error.validator_value), error.validator_value)}"
    return ""


def _instead_of_choice(error: Any) -> str:
    if _section(error) != "inputs.value-choices" or not isinstance(error.instance, bool | None):
        return ""
    return f'write "{json.dumps(error.instance)}", in quotes'


def _instead_of_version(version: Any) -> str:
    text = str(version)
    if text in {OLD, STYX}:
        return f"`hibali pipelines upgrade FILE` writes it as {NEW}"
    if text in {"0.1", "0.2", "0.3"}:
        return f"hibali cannot upgrade schema {text}: rewrite the descriptor for {NEW}"
    if text.startswith(NEW) and isinstance(version, str):
        return (
            f'this is an extension of {NEW}: write "{NEW}", then correct the problems that validate reports'
        )
    return f'write "{NEW}", in quotes'


def _worded(problem: BaseException) -> str:
    if isinstance(problem, KeyError) and problem.args:
        return f"it expects the key {problem.args[0]!r}"
    return f"{type(problem).__name__}: {problem}"


def _shorten(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 4] + " ..."
