"""Load stores, schedulers and containers by name: first hibali's own modules, then entry points."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from hibali.errors import UsageError

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_MODULE = re.compile(r"[a-z][a-z0-9]*")


def load(package: str, name: str) -> Any:
    """Return the module `PACKAGE.WORD`, or the object of an entry point named WORD, e.g. for
    `runs.schedulers`.

    hibali's own modules come first, then entry points of the group `hibali.schedulers`: a plugin cannot
    replace a built-in name. Raises `UsageError` with the names that exist.
    """
    kind = package.rpartition(".")[2].removesuffix("s")
    if _NAME.fullmatch(name):
        if name in built_in_names(package):
            module = import_module(f"{package}.{name}")
            return import_module(f"{package}.{name}.kind") if hasattr(module, "__path__") else module
        found = _entry_points(package)
        if name in found:
            return _load_entry_point(found[name], kind, name)
    raise UsageError(
        f"unknown-{kind}",
        f"no {kind} has this name",
        subject=name,
        hint=f"Known names: {', '.join(plugin_names(package)) or 'none'}.",
    )


def plugin_names(package: str) -> list[str]:
    """Return every name that `load` accepts for this package, sorted."""
    others = {name for name in _entry_points(package) if _NAME.fullmatch(name)}
    return sorted({*built_in_names(package), *others})


def built_in_names(package: str) -> list[str]:
    """Return the names of hibali's own modules, sorted, without `base` and modules with a `_` in their
    names. A package counts if it has a module `kind`.
    """
    from importlib.util import find_spec  # start-up: reading config.toml usually needs no list
    from pkgutil import iter_modules  # start-up: reading config.toml usually needs no list

    return sorted(
        found.name
        for found in iter_modules(import_module(package).__path__)
        if found.name != "base"
        and _MODULE.fullmatch(found.name)
        and (not found.ispkg or find_spec(f"{package}.{found.name}.kind") is not None)
    )


def _entry_points(package: str) -> dict[str, Any]:
    from importlib.metadata import entry_points  # start-up: not for built-in names

    group = f"hibali.{package.rpartition('.')[2]}"
    return {point.name: point for point in entry_points(group=group)}


def _load_entry_point(point: Any, kind: str, name: str) -> Any:
    try:
        return point.load()
    except Exception as problem:
        raise UsageError(
            "broken-plugin",
            f"the {kind} from {point.value!r} cannot be loaded: {type(problem).__name__}",
            subject=name,
            hint="Reinstall or remove the package that provides it.",
        ) from problem
