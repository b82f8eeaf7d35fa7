"""schedules.toml beside the configuration: read whole, changed one table at a time, comments kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any

from hibali.errors import HibaliError, UsageError
from hibali.folders import check_private_file, config_file
from hibali.ledger import ledger_folder, write_atomic
from hibali.settings import SettingsError
from hibali.settings_lines import line_of_key
from hibali.settings_table import Wrong
from hibali.system_errors import reason_of
from runs.unattended.schedule import Notices, Schedule, Schedules, read_schedules


def schedules_path(config: str | None) -> Path:
    """The file of schedules that belongs to this configuration."""
    return config_file(config).with_name("schedules.toml")


def load_schedules(config: str | None) -> Schedules:
    """What is scheduled; nothing where there is no file. Raises `RefusedError`, `SettingsError` with all that is wrong in it."""
    path = schedules_path(config)
    return _parse(_read(path), path)


def put_schedule(config: str | None, schedule: Schedule) -> Path:
    """Add the schedule or put it in the place of the one of that name; returns the file."""

    def edit(document: Any) -> None:
        named = _table(document, "schedules")
        if schedule.name in named:
            _set_all(named[schedule.name], schedule.to_table())
        else:
            named.add(schedule.name, _new_table(schedule.to_table()))

    return _edit(
        config,
        edit,
        lambda found: replace_fields(found, schedules={**found.schedules, schedule.name: schedule}),
    )


def drop_schedule(config: str | None, name: str) -> Path:
    """Take it out of the file, which is returned. Raises `NotFoundError`."""
    load_schedules(config).one(name)

    def edit(document: Any) -> None:
        document["schedules"].remove(name)

    def meant(found: Schedules) -> Schedules:
        return replace_fields(
            found, schedules={each: kept for each, kept in found.schedules.items() if each != name}
        )

    return _edit(config, edit, meant)


def put_notices(config: str | None, notices: Notices) -> Path:
    """Set who is told; returns the file."""

    def edit(document: Any) -> None:
        _set_all(_table(document, "notices"), notices.to_table())

    return _edit(config, edit, lambda found: replace_fields(found, notices=notices))


def put_metrics_file(config: str | None, file: str) -> Path:
    """Set where metrics are written after each firing, "" for nowhere; returns the file."""

    def edit(document: Any) -> None:
        _set_all(_table(document, "metrics"), {"file": file} if file else {})

    return _edit(config, edit, lambda found: replace_fields(found, metrics_file=file))


@contextlib.contextmanager
def alone(what: str) -> Iterator[None]:
    """One process of this account at a time changes `what`; waits for its turn."""
    path = ledger_folder("schedules") / f"{what}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _edit(config: str | None, edit: Callable[[Any], None], meant: Callable[[Schedules], Schedules]) -> Path:
    """Write the changed text only if it says just what was meant."""
    import tomlkit

    path = schedules_path(config)
    with alone("file"):
        text = _read(path)
        expected = meant(_parse(text, path))
        document = tomlkit.parse(text or "version = 1\n")
        edit(document)
        after = tomlkit.dumps(document)
        try:
            same = _parse(after, path) == expected
        except HibaliError:
            same = False
        if not same:
            raise UsageError(
                "not-editable",
                "this file is written in a way that cannot be changed safely",
                about=str(path),
                hint=f"Change it in an editor: ${{EDITOR:-vi}} {path}",
            )
        target = path.resolve()
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(target, after.encode("utf-8"))
        except OSError as problem:
            raise UsageError(
                "config-unwritable", f"cannot be written: {reason_of(problem)}", about=str(path)
            ) from None
    return path


def _read(path: Path) -> str:
    check_private_file(path, "the list of schedules")
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(
            "unreadable-config", f"cannot be read: {type(problem).__name__}", about=str(path)
        ) from None


def _parse(text: str, path: Path) -> Schedules:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise SettingsError(path, [{"line": 0, "key": "", "message": str(problem)}]) from None
    wrong: list[Wrong] = []
    found = read_schedules(document, path, wrong)
    if wrong:
        problems = [
            {"line": line_of_key(text, each.keys), "key": ".".join(each.keys), "message": each.message}
            for each in wrong
        ]
        raise SettingsError(path, sorted(problems, key=lambda each: (each["line"], each["key"])))
    return found


def _table(document: Any, key: str) -> Any:
    import tomlkit

    if key not in document:
        document.add(key, tomlkit.table(is_super_table=key == "schedules"))
    return document[key]


def _new_table(content: dict[str, Any]) -> Any:
    import tomlkit

    table = tomlkit.table()
    _set_all(table, content)
    return table


def _set_all(table: Any, content: dict[str, Any]) -> None:
    import tomlkit

    for key in [key for key in table if key not in content]:
        table.remove(key)
    for key, value in content.items():
        if key in table and table[key] == value:
            continue
        if isinstance(value, dict):
            inline = tomlkit.inline_table()
            inline.update(value)
            table[key] = inline
        else:
            table[key] = value
