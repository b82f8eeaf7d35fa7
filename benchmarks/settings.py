"""List the settings of a site that differ from hibali's defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from hibali.amounts import duration_text
from hibali.config.kinds import read_site
from hibali.config.schema import Wrong, collect, keys_of_field

# keys that locate the site and its data; they do not change how hibali works
_LOCATION = {
    *("roots", "default_root", "work", "host", "command"),
    *("endpoint", "bucket", "region", "paths"),
}


def changed_settings(name: str, table: Mapping[str, Any]) -> list[str]:
    """Return `key = value` for each setting of the site that differs from its default.

    Args:
        name: The site's name.
        table: Its table in the configuration, as parsed from TOML.

    Raises:
        ValueError: hibali would not accept the table.
    """
    wrong: list[Wrong] = []
    site = read_site(name, table, collect(wrong))
    if wrong:
        raise ValueError(f"site {name}: {'.'.join(wrong[0].keys)}: {wrong[0].message}")
    return sorted(_changed(site, ""))


def _changed(record: Any, path: str) -> Iterator[str]:
    for each in fields(record):
        names = keys_of_field(each)
        value = getattr(record, each.name)
        if not names or names.keys() & _LOCATION:
            continue
        if is_dataclass(value):
            is_inline = each.metadata["key"].inline is not None
            yield from _changed(value, path if is_inline else f"{path}{next(iter(names))}.")
        elif _has_default(each) and value != _default(each):
            yield f"{path}{next(iter(names))} = {_text(each, value)}"


def _has_default(each: Field[Any]) -> bool:
    """Return whether the key may be left out: a required one describes the site."""
    return each.default is not MISSING or each.default_factory is not MISSING


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


def _text(each: Field[Any], value: Any) -> str:
    """Format a value as it is written in config.toml."""
    return json.dumps(duration_text(value) if each.name.endswith("_seconds") else value)
