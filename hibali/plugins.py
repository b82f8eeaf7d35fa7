"""Load stores, schedulers and other parts by name: hibali's own modules, the folders of `hibali_plugins`, installed packages.

A folder of `hibali_plugins` declares its parts in `entry_points.txt`, in the format that an installed package has in its
`*.dist-info`; both are read here, because `importlib.metadata` takes forty times as long. A folder that is removed leaves
no trace. The core imports none of them: it asks for a group (docs/extending.md) when it needs one.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from hibali.errors import UsageError

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_MODULE = re.compile(r"[a-z][a-z0-9]*")
_FILE = "entry_points.txt"
_REQUIRES = "hibali.requires"
Points = dict[str, dict[str, str]]  # `MODULE` or `MODULE:OBJECT` by group and name


def load(package: str, name: str) -> Any:
    """Return the module `PACKAGE.WORD`, or what a plugin or an installed package declares as WORD, e.g. for
    `runs.schedulers`.

    hibali's own modules come first, then entry points of the group `hibali.schedulers`: a plugin cannot
    replace a built-in name. Raises `UsageError` with the names that exist.
    """
    group = _group_of(package)
    kind = _kind_of(group)
    if _NAME.fullmatch(name):
        module = _own_module(package, name)
        found = module if module is not None else find(group, name)
        if found is not None:
            return found
    raise UsageError(
        f"unknown-{kind}",
        f"no {kind} has this name",
        subject=name,
        hint=f"Known names: {', '.join(plugin_names(package)) or 'none'}.",
    )


def plugin_names(package: str) -> list[str]:
    """Return every name that `load` accepts for this package, sorted."""
    others = {name for name in names_of(_group_of(package)) if _NAME.fullmatch(name)}
    return sorted({*built_in_names(package), *others})


def has(package: str, name: str) -> bool:
    """Return whether `load` accepts a name; asks installed packages only for names that are not hibali's own."""
    return name in built_in_names(package) or name in plugin_names(package)


def built_in_names(package: str) -> list[str]:
    """Return the names of hibali's own modules and of its plugins, sorted, without `base` and modules with a
    `_` in their names. A package counts if it has a module `kind`.
    """
    folder = Path(import_module(package).__path__[0])
    own = {
        path.stem
        for path in folder.iterdir()
        if _is_module_name(path.stem) and (path.suffix == ".py" or (path / "kind.py").exists())
    }
    return sorted({*own, *_folders().get(_group_of(package), {})})


def find(group: str, name: str) -> Any | None:
    """Return the object of this name, None if no plugin and no installed package has it.

    Raises `UsageError` if that of an installed package cannot be loaded.
    """
    value = _folders().get(group, {}).get(name)
    if value is not None:
        return object_of(value)
    value = _installed().get(group, {}).get(name)
    if value is None:
        return None
    try:
        return object_of(value)
    except Exception as problem:
        raise UsageError(
            "broken-plugin",
            f"the {_kind_of(group)} from {value!r} cannot be loaded: {type(problem).__name__}",
            subject=name,
            hint="Reinstall or remove the package that provides it.",
        ) from problem


def not_installed(feature: str, subject: str) -> UsageError:
    """Return the error for a feature whose folder is not there."""
    return UsageError(
        "usage", f"this hibali has no {feature}", subject=subject, hint="Install all of hibali."
    )


def if_offered(name: str, hint: str) -> str:
    """Return a hint that names a command, options or a kind of site of a plugin, "" without that plugin.

    Only for messages: it asks installed packages.
    """
    groups = ("hibali.commands", "hibali.options", "hibali.stores")
    return hint if any(name in names_of(group) for group in groups) else ""


def names_of(group: str) -> list[str]:
    """Return the names that plugins and installed packages have in a group, sorted."""
    return sorted({*_folders().get(group, {}), *_installed().get(group, {})})


def every(group: str, parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names of a group and their objects, sorted, without what cannot be loaded.

    Of names with a dot, such as `pipelines.import`, only those below `parent`.
    """
    for name in names_of(group):
        found = None
        if name.rpartition(".")[0] == parent:
            with contextlib.suppress(UsageError):
                found = find(group, name)
        if found is not None:
            yield name, found


def _group_of(package: str) -> str:
    return f"hibali.{package.rpartition('.')[2]}"


def _kind_of(group: str) -> str:
    return group.removeprefix("hibali.").removesuffix("s")


def _is_module_name(name: str) -> bool:
    return name != "base" and _MODULE.fullmatch(name) is not None


def _own_module(package: str, name: str) -> Any | None:
    """Import hibali's own module of this name without listing its folder, None if there is none."""
    if not _is_module_name(name):
        return None
    full = f"{package}.{name}"
    try:
        module = import_module(full)
        return import_module(f"{full}.kind") if hasattr(module, "__path__") else module
    except ModuleNotFoundError as problem:
        if problem.name not in {full, f"{full}.kind"}:
            raise
        return None


def object_of(value: str) -> Any:
    """Import and return what `MODULE` or `MODULE:OBJECT` names."""
    module, _, path = value.partition(":")
    found = import_module(module)
    for name in filter(None, path.split(".")):
        found = getattr(found, name)
    return found


@cache
def _folders() -> Points:
    """Return what the folders of hibali_plugins declare; one that requires a missing one counts as removed."""
    root = Path(__file__).parents[1] / "hibali_plugins"
    found = {folder: points for folder, points in _read(str(root)) if points}
    while missing := [
        folder for folder, points in found.items() if not points.get(_REQUIRES, {}).keys() <= found.keys()
    ]:
        for folder in missing:
            del found[folder]
    return _join(found.values())


def _installed() -> Points:
    """Return what installed packages declare for hibali."""
    return _declared_on(tuple(sys.path))


@cache
def _declared_on(path: tuple[str, ...]) -> Points:
    return _join(points for each in path for _, points in _read(each or ".", (".dist-info", ".egg-info")))


def _read(parent: str, endings: tuple[str, ...] = ("",)) -> Iterator[tuple[str, Points]]:
    """Yield the folders in another one that declare parts of hibali, and what they declare, sorted."""
    try:
        names = sorted(os.listdir(parent))  # noqa: PTH208  # pathlib costs start-up time
    except OSError:
        return
    for name in filter(lambda each: each.endswith(endings), names):
        try:
            with open(f"{parent}/{name}/{_FILE}", encoding="utf-8") as stream:  # noqa: PTH123  # as above
                text = stream.read()
        except (OSError, ValueError):
            continue
        if "[hibali." in text:
            yield name, _parse(text)


def _parse(text: str) -> Points:
    points: Points = {}
    names: dict[str, str] = {}
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            names = points.setdefault(line[1:-1].strip(), {})
        elif line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            names[name.strip()] = value.partition("[")[0].strip()  # without extras, which are obsolete
    return points


def _join(parts: Iterable[Points]) -> Points:
    """Return all points; of several with one name the first counts."""
    joined: Points = {}
    for points in parts:
        for group, names in points.items():
            joined[group] = {**names, **joined.get(group, {})}
    return joined
