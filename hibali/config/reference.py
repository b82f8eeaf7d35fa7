"""List the keys of config.toml as the schema declares them, for documentation and completion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from hibali.amounts import duration_text
from hibali.config.schema import Key, keys_of_field
from hibali.config.settings import Document, Keys

ANY_NAME = "NAME"  # in the path of a table: the name of a site or remote


def tables_of(declared: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a table and those nested in it, each with its name in the file."""
    yield path, declared
    types = get_type_hints(declared)
    for each in fields(declared):
        kinds = [types[each.name], *get_args(types[each.name])]
        below = next((kind for kind in kinds if is_dataclass(kind)), None)
        if "key" not in each.metadata or below is None or each.metadata["key"].inline:
            continue
        name = f"{path}.{each.name}".lstrip(".")
        many = get_origin(types[each.name]) is dict
        yield from tables_of(below, f"{name}.{ANY_NAME}" if many else name)


def default_text(each: Field[Any], key: Key) -> str:
    """Return the default of a key as it is written in the file; `required`, or "" for none."""
    value = None if each.default is MISSING else each.default
    if key.required:
        return "required"
    if each.name.endswith("_seconds") and value is not None:
        return duration_text(value)
    if value is None or value in ("", ()) or is_dataclass(value):
        return ""
    shown = " ".join(value) if isinstance(value, tuple) else str(value)
    return shown.lower() if isinstance(value, bool) else shown


def keys_in_file() -> Iterator[tuple[Keys, str]]:
    """Yield the path of each key, with `NAME` for a name that the user chooses, and its default."""
    for path, declared in tables_of(Document):
        above = tuple(path.split(".")) if path else ()
        for each in fields(declared):
            for name, key in keys_of_field(each).items():
                yield (*above, name), default_text(each, key)


def default_of(keys: Keys) -> str:
    """Return the default of the key at this path; "" for none, and for an unknown key."""
    for path, default in keys_in_file():
        alike = len(path) == len(keys) and all(
            one in (other, ANY_NAME) for one, other in zip(path, keys, strict=False)
        )
        if alike and default != "required":
            return default
    return ""
