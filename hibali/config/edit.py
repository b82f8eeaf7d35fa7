"""Edit one site of config.toml at a time: atomically, keeping comments, and checked by parsing the result."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, MutableMapping
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, Literal

import tomlkit

from hibali.config.model import RemoteSettings, Site
from hibali.config.schema import Wrong
from hibali.config.settings import (
    Keys,
    Settings,
    alike,
    lines_of_table,
    parse_settings,
    read_document,
    require_known_programs,
)
from hibali.errors import RefusedError, TryLaterError, UsageError
from hibali.files import check_private_file, config_file, write_atomic
from hibali.system_errors import reason_of, unreadable
from hibali.text import printable

Change = Literal["added", "same", "replaced"]
_INLINE = frozenset({"roots", "paths"})
_MOST_SHOWN = 10  # keys in a message
_AROUND = frozenset({"globus", "sites"})  # tables that a site refers to


def check_site_table(name: str, table: Mapping[str, Any], text: str = "") -> Site:
    """Return the site that this table would define in a config.toml with that text.

    Raises `UsageError` with all problems in it, and for a scheduler or container that this version does not support.
    """
    return _check_table(name, table, text, {})


def _check_table(
    name: str, table: Mapping[str, Any], text: str, others: Mapping[str, Mapping[str, Any]]
) -> Site:
    """Check a table as `check_site_table` does, in a config.toml with that text and these other sites."""
    wrong: list[Wrong] = []
    around = {key: value for key, value in tomllib.loads(text).items() if key in _AROUND}
    sites = {**around.pop("sites", {}), **others, name: dict(table)}
    other = alike(name, sites)
    if other:
        raise UsageError(
            "invalid-site",
            f"its name differs from that of {other} only in upper and lower case",
            subject=name,
            hint="Choose another name.",
        )
    found = read_document({**around, "version": 1, "sites": sites}, wrong).sites
    if wrong:
        keys = [each.keys[2:] if each.keys[1:2] == (name,) else each.keys for each in wrong]
        listed = [
            f"{printable('.'.join(path) or name)}: {each.message}"
            for path, each in zip(keys, wrong, strict=True)
        ]
        raise UsageError(
            "invalid-site", "\n".join(["the settings of the site are invalid:", *listed]), subject=name
        )
    require_known_programs(found[name])
    return found[name]


def render_site(name: str, table: Mapping[str, Any]) -> str:
    """Return the TOML text of one site; each of its tables has its own header."""
    return _render("sites", name, table)


def _render(section: str, name: str, table: Mapping[str, Any]) -> str:
    document = tomlkit.document()
    tables = tomlkit.table(is_super_table=True)
    tables.add(name, _toml_table(table))
    document.add(section, tables)
    return document.as_string().strip() + "\n"


def plan_site(config: str | None, name: str, table: Mapping[str, Any], *, replace: bool) -> Change:
    """Return the change that `add_site` would make, without writing it; raises the same errors."""
    _, text, settings = read_file(config)
    return _compare(settings, check_site_table(name, table, text), text, table, replace=replace)


def has_site(config: str | None, name: str, table: Mapping[str, Any]) -> bool:
    """Return whether config.toml has this site with these settings, and maybe others.

    Raises `RefusedError("site-differs")` if one of them is another.
    """
    _, text, settings = read_file(config)
    found = settings.sites.get(name)
    if found is None:
        return False
    merged = _merged(tomllib.loads(text)["sites"][name], table)
    try:
        same = check_site_table(name, merged, text) == found
    except UsageError:  # the keys of two kinds
        same = False
    if not same:
        raise _differs(settings, text, name, merged)
    return True


def add_site(
    config: str | None, name: str, table: Mapping[str, Any], *, replace: bool = False
) -> tuple[Change, Site]:
    """Write one site into config.toml as `add_sites` does."""
    [added] = add_sites(config, {name: table}, replace=replace)
    return added


def add_sites(
    config: str | None, tables: Mapping[str, Mapping[str, Any]], *, replace: bool = False
) -> list[tuple[Change, Site]]:
    """Write these sites into config.toml, all or none, at once; a missing file is created with mode 0600.

    Adding an identical site changes nothing. Raises `RefusedError("site-differs")` if a different site has
    one of the names and `replace` is off, `UsageError` for an invalid site or file.
    """
    path, text, settings = read_file(config)
    before, added = text, []
    checked = {name: _check_table(name, table, text, tables) for name, table in tables.items()}
    for name, table in tables.items():
        site = checked[name]
        change = _compare(settings, site, text, table, replace=replace)
        if change != "same":
            text = (_appended if change == "added" else _updated)(text, name, table)
            settings = _with_site(settings, site)
        added.append((change, site))
    if text != before:
        _require_meaning(path, text, settings)
        replace_text(path, before, text)
    return added


def remove_site(config: str | None, name: str) -> Path:
    """Remove the site from config.toml, also as the default site; return the file. Raises `UsageError` if the site does not exist."""
    path, text, settings = read_file(config)
    settings.site(name)
    _require_unused(settings, name)
    left = {other: site for other, site in settings.sites.items() if other != name}
    expected, without = replace_fields(settings, sites=left), without_lines(text, ("sites", name))
    if settings.default_site == name:
        expected, without = (
            replace_fields(expected, default_site=""),
            without_lines(without, ("default_site",)),
        )
    _write(path, text, without, expected)
    return path


def _require_unused(settings: Settings, name: str) -> None:
    """Raise `UsageError` if files of other sites are moved by this one."""
    users = sorted(
        each.name for each in settings.sites.values() if each.files_at and each.files_at.name == name
    )
    if users:
        shown = ", ".join(users[:_MOST_SHOWN]) + (", ..." if len(users) > _MOST_SHOWN else "")
        kind = settings.sites[users[0]].kind
        raise UsageError(
            "site-in-use",
            f"the `data` of other sites names it, which moves their files: {shown}",
            subject=name,
            hint=f"Remove them first, or their `data`: hibali config unset sites.{users[0]}.{kind}.data",
        )


def add_remote(config: str | None, remote: RemoteSettings, *, replace: bool = False) -> Change:
    """Write a remote into config.toml; adding an identical one changes nothing.

    Raises `RefusedError("remote-differs")` if a different remote has that name and `replace` is off,
    `UsageError`.
    """
    path, text, settings = read_file(config)
    found = settings.remotes.get(remote.name)
    if found == remote:
        return "same"
    if found is not None and not replace:
        raise RefusedError(
            "remote-differs",
            f"another remote with this name exists in {settings.path}: {found.url}",
            subject=remote.name,
            hint="To replace it, add --replace.",
        )
    before = text if found is None else without_lines(text, ("remotes", remote.name))
    expected = replace_fields(settings, remotes=settings.remotes | {remote.name: remote})
    table = {"url": remote.url, **({"images": remote.images} if remote.images else {})}
    _write(path, text, _above(before) + _render("remotes", remote.name, table), expected)
    return "added" if found is None else "replaced"


def remove_remote(config: str | None, name: str) -> Path:
    """Remove a remote from config.toml; return the file. Raises `UsageError` if the remote does not exist."""
    path, text, settings = read_file(config)
    settings.remote(name)
    left = {other: remote for other, remote in settings.remotes.items() if other != name}
    _write(path, text, without_lines(text, ("remotes", name)), replace_fields(settings, remotes=left))
    return path


def _with_site(settings: Settings, site: Site) -> Settings:
    """Return the settings with this site, through which others may move their files."""
    sites = {
        name: replace_fields(each, files_at=site)
        if each.files_at and each.files_at.name == site.name
        else each
        for name, each in settings.sites.items()
    }
    return replace_fields(settings, sites=sites | {site.name: site})


def read_file(config: str | None) -> tuple[Path, str, Settings]:
    """Return the path of config.toml, its text, and what it means. Raises as `load_sites` does."""
    path, text = read_text(config)
    return path, text, parse_settings(text, path)


def read_text(config: str | None) -> tuple[Path, str]:
    """Return the path of config.toml and its text, which may be invalid; "" for a missing file."""
    path = config_file(config)
    check_private_file(path, "the configuration")
    try:
        return path, path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return path, ""
    except OSError as problem:
        raise unreadable(problem, str(path), code="unreadable-config") from None
    except UnicodeDecodeError as problem:
        raise UsageError(
            "unreadable-config", f"not UTF-8 at byte {problem.start}", subject=str(path)
        ) from None


def _compare(settings: Settings, site: Site, text: str, table: Mapping[str, Any], *, replace: bool) -> Change:
    found = settings.sites.get(site.name)
    if found is None:
        return "added"
    if found == site:
        return "same"
    if replace:
        return "replaced"
    raise _differs(settings, text, site.name, table)


def _differs(settings: Settings, text: str, name: str, table: Mapping[str, Any]) -> RefusedError:
    keys = _different(tomllib.loads(text)["sites"][name], table)
    shown = ", ".join(map(printable, keys[:_MOST_SHOWN])) + (", ..." if len(keys) > _MOST_SHOWN else "")
    return RefusedError(
        "site-differs",
        f"another site with this name exists in {settings.path}" + (f"; different: {shown}" if keys else ""),
        subject=name,
        hint=f"See `hibali sites show {name}`. To replace it, add --replace.",
    )


def _different(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys that do not have the same value in both tables."""
    found = []
    for key in {**old, **new}:
        left, right = old.get(key), new.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += [f"{key}.{each}" for each in _different(left, right)]
        elif left != right:
            found.append(key)
    return found


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the keys of both; those of `new` count."""
    merged = {**old, **new}
    for key, value in new.items():
        if isinstance(value, Mapping) and isinstance(old.get(key), Mapping):
            merged[key] = _merged(old[key], value)
    return merged


def _appended(text: str, name: str, table: Mapping[str, Any]) -> str:
    return _above(text) + render_site(name, table)


def _above(text: str) -> str:
    """Return the text to write before a new table."""
    return text.rstrip("\n") + "\n\n" if text.strip() else "version = 1\n\n"


def without_lines(text: str, keys: Keys) -> str:
    """Return the text without the lines of a table or key; comments inside it go, those around it stay."""
    lines = text.splitlines(keepends=True)
    for first, last in reversed(lines_of_table(text, keys)):
        while last < len(lines) and not lines[last].strip():
            last += 1  # noqa: PLW2901  # the blank lines behind it go with it
        del lines[first - 1 : last]
    return "".join(lines)


def _updated(text: str, name: str, table: Mapping[str, Any]) -> str:
    """Return the text with the site changed in place, keeping the comments in it and around it."""
    site = ("sites", name)
    for keys in _stale(tomllib.loads(text)["sites"][name], table, site):
        text = without_lines(text, keys)
    document = tomlkit.parse(text)
    sites: Any = document["sites"]
    _set_values(sites[name], table)
    text = document.as_string()
    lines = text.splitlines(keepends=True)
    new = {key: value for key, value in table.items() if _is_table(key, value) and key not in sites[name]}
    if new:
        after = max(last for _, last in lines_of_table(text, site))
        lines.insert(after, "\n" + render_site(name, new).removeprefix(f"[sites.{name}]\n").lstrip())
    return "".join(lines)


def _stale(old: Mapping[str, Any], new: Mapping[str, Any], keys: Keys) -> list[Keys]:
    """Return the tables and keys of `old` that `new` does not have."""
    found: list[Keys] = []
    for key, value in old.items():
        if key not in new:
            found.append((*keys, key))
        elif _is_table(key, value) and isinstance(new[key], Mapping):
            found.extend(_stale(value, new[key], (*keys, key)))
    return found


def _set_values(old: MutableMapping[str, Any], new: Mapping[str, Any]) -> None:
    """Set the values that differ in existing tables; the caller adds new tables."""
    for key, value in new.items():
        if _is_table(key, value):
            if key in old:
                _set_values(old[key], value)
        elif key not in old or old[key] != value:
            old[key] = _inline(value) if isinstance(value, Mapping) else value


def _is_table(key: str, value: Any) -> bool:
    """Return whether the value gets its own header; a mapping of strings, such as `roots`, is written
    inline.
    """
    return isinstance(value, Mapping) and key not in _INLINE


def _toml_table(content: Mapping[str, Any]) -> Any:
    table = tomlkit.table()
    for key, value in content.items():
        if not _is_table(key, value):
            table.add(key, _inline(value) if isinstance(value, Mapping) else value)
    for key, value in content.items():
        if _is_table(key, value):
            table.add(key, _toml_table(value))
    return table


def _inline(content: Mapping[str, str]) -> Any:
    table = tomlkit.inline_table()
    table.update(content)
    return table


def _write(path: Path, before: str, after: str, expected: Settings) -> None:
    """Write the text if it parses to `expected` and no other process changed the file meanwhile."""
    _require_meaning(path, after, expected)
    replace_text(path, before, after)


def _require_meaning(path: Path, text: str, expected: Settings) -> None:
    """Raise `UsageError` unless the text parses to `expected`."""
    try:
        meant = parse_settings(text, path) == expected
    except (UsageError, tomllib.TOMLDecodeError):
        meant = False
    if not meant:
        raise not_editable(path)


def not_editable(path: Path) -> UsageError:
    """Return the error for a file whose layout hibali cannot change without changing its meaning."""
    return UsageError(
        "not-editable",
        "hibali cannot change this file safely",
        subject=str(path),
        hint="Change it in an editor: hibali config edit",
    )


def replace_text(path: Path, before: str, after: str) -> None:
    """Replace the file atomically, unless another process changed it since it was read."""
    target = path.resolve()
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = target.read_bytes().decode("utf-8") if target.exists() else ""
        if now != before:
            raise TryLaterError(
                "config-changed", "another program changed the file in the meantime", subject=str(path)
            )
        write_atomic(target, after.encode("utf-8"))
    except OSError as problem:
        raise UsageError(
            "config-unwritable", f"cannot be written: {reason_of(problem)}", subject=str(path)
        ) from None
