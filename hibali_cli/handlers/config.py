"""Get, list, set and edit settings of config.toml."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomlkit

from hibali.amounts import split_command
from hibali.config.edit import read_text
from hibali.config.edit_keys import get_value, read_edited, set_value, unset_value
from hibali.config.settings import list_settings
from hibali.errors import HibaliError, IncompleteError, UsageError
from hibali.files import config_file, private_folder, state_folder, write_atomic
from hibali.subprocesses import run_in_terminal
from hibali.system_errors import unreadable
from hibali_cli.fields import write_list
from hibali_cli.options import Common


def print_path(common: Common) -> int:
    """Print the path of config.toml; return the exit code."""
    path = config_file(common.config)
    if common.json:
        common.output.record("config-file", {"file": str(path), "exists": path.exists()})
    else:
        common.output.line(os.fsencode(path))
    return 0


def print_value(common: Common, key: str) -> int:
    """Print a setting: text as it is, everything else as in TOML; return the exit code."""
    value = get_value(common.config, key)
    if common.json:
        common.output.record("setting", {"key": key, "value": value})
    elif isinstance(value, str):
        common.output.line(value)
    elif isinstance(value, Mapping):
        for line in tomlkit.dumps(value).splitlines():
            common.output.line(line)
    else:
        common.output.line(tomlkit.item(value).as_string())
    return 0


def list_values(common: Common) -> int:
    """List every setting with its source; return the exit code."""
    _, text = read_text(common.config)
    found = list(list_settings(common.settings(), tomllib.loads(text)))
    records = ({"key": ".".join(keys), "value": value, "source": source} for keys, value, source in found)
    if not write_list(common, "setting", records):
        rows = [(".".join(keys), _value_text(value), source) for keys, value, source in found]
        common.output.table(["key", "value", "source"], rows)
    return 0


def _value_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        inline = tomlkit.inline_table()
        inline.update(value)
        return inline.as_string()
    return str(tomlkit.item(value).as_string())


def change_value(common: Common, key: str, value: str) -> int:
    """Set a setting; return the exit code."""
    path, changed = set_value(common.config, key, value)
    _print_change(common, key, "set" if changed else "same", path)
    return 0


def remove_value(common: Common, key: str) -> int:
    """Remove a setting; return the exit code."""
    _print_change(common, key, "unset", unset_value(common.config, key))
    return 0


def _print_change(common: Common, key: str, change: str, path: Path) -> None:
    if common.json:
        common.output.record("setting-change", {"key": key, "change": change, "file": str(path)})
    words = {"set": "was set in", "same": "is already so in", "unset": "was removed from"}
    common.output.info(f"{key} {words[change]} {path}.")


def edit_config(common: Common, start: str | None) -> int:
    """Let the user edit a copy, and replace config.toml by it if it is valid; return the exit code."""
    path, text = read_text(common.config)
    copy = private_folder(state_folder() / "edited") / f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}.toml"
    write_atomic(copy, (text if start is None else _read(Path(start))).encode("utf-8"))
    try:
        _edit(copy)
        path, changed = read_edited(common.config, _read(copy))
    except HibaliError as problem:
        if _read(copy) == text:
            copy.unlink()
            raise
        raise _kept(problem, path, copy) from None
    copy.unlink()
    if common.json:
        fields: dict[str, Any] = {"file": str(path), "exists": path.exists(), "changed": changed}
        common.output.record("config-file", fields)
    common.output.info(f"{path} was changed." if changed else f"{path} is unchanged.")
    return 0


def _edit(copy: Path) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        argv = split_command(editor)
    except ValueError as problem:
        raise UsageError("bad-words", str(problem), subject="EDITOR") from None
    code = run_in_terminal([*argv, str(copy)])
    if code != 0:
        raise IncompleteError("editor-failed", f"the editor ended with status {code}", subject=editor)


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except OSError as problem:
        raise unreadable(problem, str(file)) from None
    except UnicodeDecodeError as problem:
        raise UsageError("invalid-config", f"not UTF-8 at byte {problem.start}", subject=str(file)) from None


def _kept(problem: HibaliError, path: Path, copy: Path) -> HibaliError:
    """Return the error with the place of the copy."""
    problem.message = f"{problem.message}\n{path} was not changed; the edited copy is kept: {copy}"
    problem.hint = f"To correct the copy: hibali config edit --from {copy}"
    return problem
