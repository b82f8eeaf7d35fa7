"""Get, set and unset single keys of config.toml, and edit the file: checked before it is written, comments kept."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.exceptions

from hibali.config.edit import not_editable, read_file, read_text, replace_text, without_lines
from hibali.config.settings import (
    Keys,
    Settings,
    SettingsError,
    default_of,
    parse_settings,
    read_key,
    read_value,
    require_known_programs,
)
from hibali.errors import NotFoundError, UsageError
from hibali.text import nearest, printable

_LIST = "To list all settings: hibali config list"


def get_value(config: str | None, key: str) -> Any:
    """Return the value of a key in the file; raises `NotFoundError`, which names the default, if it is not set."""
    path, text, _ = read_file(config)
    keys = read_key(key)
    try:
        return _find(tomllib.loads(text), keys)
    except KeyError:
        default = default_of(keys)
        shown = f"; its default is {default}" if default else ""
        raise NotFoundError(
            "not-set",
            f"it is not set in {path}{shown}",
            subject=printable(key),
            hint=_nearest_key(tomllib.loads(text), keys) or _LIST,
        ) from None


def _nearest_key(document: Any, keys: Keys) -> str:
    """Return "Did you mean KEY?" for the first of the keys that the file does not have."""
    for position, key in enumerate(keys):
        if not isinstance(document, MutableMapping):
            break
        if key not in document:
            meant = nearest(key, document)
            return (
                f"Did you mean {'.'.join((*keys[:position], meant, *keys[position + 1 :]))}?" if meant else ""
            )
        document = document[key]
    return ""


def set_value(config: str | None, key: str, text: str) -> tuple[Path, bool]:
    """Set a key to a TOML value, or to the text as a string; return the file, and whether it changed.

    Raises `UsageError` for a key or value that the schema refuses; nothing is written then.
    """
    path, before, _ = read_file(config)
    keys = read_key(key)
    value = read_value(text)
    try:
        after = _with_value(path, before, keys, value)
    except UsageError as problem:
        if isinstance(value, str):
            raise
        try:
            after = _with_value(path, before, keys, text)  # a name may look like a number
        except UsageError:
            raise problem from None
    if after != before:
        replace_text(path, before, after)
    return path, after != before


def unset_value(config: str | None, key: str) -> Path:
    """Remove a key, or a whole table; return the file. Raises `NotFoundError`, `UsageError` as `set_value`."""
    path, before, _ = read_file(config)
    keys = read_key(key)
    meant = tomllib.loads(before)
    try:
        del _find(meant, keys[:-1])[keys[-1]]
    except (KeyError, TypeError):
        message = f"it is not set in {path}"
        raise NotFoundError("not-set", message, subject=printable(key), hint=_LIST) from None
    after = without_lines(before, keys)
    if _document(after) != meant:
        document = tomlkit.parse(before)
        del _find(document, keys[:-1])[keys[-1]]
        after = document.as_string()
    _check(path, after, meant, key)
    replace_text(path, before, after)
    return path


def read_edited(config: str | None, edited: str) -> tuple[Path, bool]:
    """Replace the file by an edited text; return it, and whether it changed. Raises `SettingsError`."""
    path, before = read_text(config)
    parse_settings(edited, path)
    if edited != before:
        replace_text(path, before, edited)
    return path, edited != before


def _with_value(path: Path, before: str, keys: Keys, value: Any) -> str:
    """Return the text with the key set."""
    meant = copy.deepcopy(tomllib.loads(before)) or {"version": 1}
    if _put(meant, keys, value, dict) is None:
        return before
    document = tomlkit.parse(before or "version = 1\n")
    try:
        _put(document, keys, value, tomlkit.table)
        after = document.as_string()
    except tomlkit.exceptions.TOMLKitError:
        raise not_editable(path) from None
    settings = _check(path, after, meant, ".".join(keys))
    if keys[0] == "sites" and keys[2:3] in (("scheduler",), ("container",)):
        require_known_programs(settings.sites[keys[1]])
    return after


def _put(
    table: MutableMapping[str, Any], keys: Keys, value: Any, new: Any
) -> MutableMapping[str, Any] | None:
    """Set a value in nested tables, which are made where they are missing; return None if it is set already."""
    for key in keys[:-1]:
        if key not in table:
            table[key] = new()
        table = table[key]
        if not isinstance(table, MutableMapping):
            raise UsageError("bad-setting-key", f"{key} is not a table", subject=printable(".".join(keys)))
    if keys[-1] in table and table[keys[-1]] == value and type(table[keys[-1]]) is type(value):
        return None
    table[keys[-1]] = value
    return table


def _check(path: Path, after: str, meant: dict[str, Any], key: str) -> Settings:
    """Return what the text means. Raises `UsageError` unless it is valid and has exactly this meaning."""
    if _document(after) != meant:
        raise not_editable(path)
    try:
        return parse_settings(after, path)
    except SettingsError as problem:
        listed = [f"{printable(found['key'])}: {found['message']}" for found in problem.problems]
        raise UsageError(
            "invalid-setting",
            "\n".join(["this change would make the configuration invalid; nothing was changed:", *listed]),
            subject=printable(key),
        ) from None


def _document(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _find(document: Any, keys: Keys) -> Any:
    for key in keys:
        if not isinstance(document, MutableMapping):
            raise KeyError(key)
        document = document[key]
    return document
