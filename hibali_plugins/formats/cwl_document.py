"""Read documents of CWL: YAML without aliases, maps and lists of records, and the types of parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hibali.errors import UsageError

NUMBERS = {"int": True, "long": True, "float": False, "double": False}
_MOST_OPEN = 1000  # brackets


@dataclass(frozen=True, slots=True)
class ParameterType:
    """The type of a parameter: `name` is that of one value; None for one that Boutiques does not have."""

    name: str | None
    optional: bool = False
    array: bool = False
    symbols: tuple[str, ...] = ()
    items_binding: Mapping[str, Any] | None = None


def read_yaml(text: str, subject: str) -> Any:
    """Read a YAML 1.2 or JSON document without aliases, which could expand to any size. Raise `UsageError`."""
    from ruamel.yaml import YAML  # start-up: only for these documents
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.events import AliasEvent

    if _opens_too_many(text):
        message = "more than 1000 brackets are open at once"
        raise UsageError("invalid-yaml", message, subject=subject)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            if isinstance(event, AliasEvent):
                message = f"line {event.start_mark.line + 1}: aliases are not supported"
                raise UsageError("invalid-yaml", message, subject=subject)
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as problem:
        mark = problem.problem_mark if isinstance(problem, MarkedYAMLError) else None
        place = f"line {mark.line + 1}: " if mark is not None else ""
        reason = problem.problem if isinstance(problem, MarkedYAMLError) else None
        raise UsageError("invalid-yaml", place + (reason or "it is not YAML"), subject=subject) from None


def _opens_too_many(text: str) -> bool:
    """Return whether more brackets are open at once than any document needs: the parser's time grows with their square."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = max(0, depth + (1 if bracket in "[{" else -1))
        if depth > _MOST_OPEN:
            return True
    return False


def read_entries(section: Any, only: str, *, key: str = "id") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the entries of a map or a list of records; in a map a value that is no record is that of the key `only`."""
    if isinstance(section, dict):
        for name, value in section.items():
            yield str(name), value if isinstance(value, dict) else {only: value}
    for each in section if isinstance(section, list) else ():
        if isinstance(each, dict) and key in each:
            yield str(each[key]).rpartition("#")[2].rpartition("/")[2], each


def read_type(value: Any) -> ParameterType:
    """Read a type in any of its forms: `T`, `T?`, `T[]`, a union with null, an array or an enum."""
    if isinstance(value, list):
        others = [each for each in value if each != "null"]
        if sorted(map(str, others)) == ["Directory", "File"]:
            return ParameterType("File", optional="null" in value)
        kinds = [read_type(each) for each in others]
        names = {each.name for each in kinds}
        if (
            len(others) > 1
            and None not in names
            and not any(each.items_binding for each in kinds)
            and (names <= {*NUMBERS} or names == {"string"} or len(names) == 1)
        ):
            is_array = any(each.array for each in kinds)
            return ParameterType(str(names.pop()) if len(names) == 1 else "double", "null" in value, is_array)
        if len(others) != 1:
            return ParameterType(None, optional="null" in value)
        return _optional(kinds[0], optional="null" in value)
    if isinstance(value, dict):
        return _read_record(value)
    text = str(value)
    if text.endswith("?"):
        return _optional(read_type(text[:-1]), optional=True)
    if text.endswith("[]"):
        return _array_of(read_type(text[:-2]), None)
    known = {"string", "boolean", "File", "Directory", "stdin", "stdout", "stderr", *NUMBERS}
    return ParameterType(text if text in known else None)


def _read_record(value: Mapping[str, Any]) -> ParameterType:
    if value.get("type") == "array":
        binding = value.get("inputBinding")
        return _array_of(read_type(value.get("items")), binding if isinstance(binding, dict) else None)
    if value.get("type") == "enum" and isinstance(value.get("symbols"), list):
        symbols = (str(each).rpartition("#")[2].rpartition("/")[2] for each in value["symbols"])
        return ParameterType("string", symbols=tuple(symbols))
    return ParameterType(None)


def _array_of(items: ParameterType, binding: Mapping[str, Any] | None) -> ParameterType:
    if items.array or items.optional or items.name == "boolean":
        return ParameterType(None)
    return ParameterType(items.name, array=True, symbols=items.symbols, items_binding=binding)


def _optional(found: ParameterType, *, optional: bool) -> ParameterType:
    return ParameterType(
        found.name, optional or found.optional, found.array, found.symbols, found.items_binding
    )


def text_of(value: Any) -> str:
    """Return the text of a value; lines of documentation are joined."""
    if isinstance(value, list):
        return "\n".join(str(each) for each in value)
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
