"""Load stores, schedulers and containers by name: first hibali's own modules, then entry points."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
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
        module = _own_module(package, name)
        if module is not None:
            return module
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


def has(package: str, name: str) -> bool:
    """Return whether `load` accepts a name; asks installed packages only for names that are not hibali's own."""
    return name in built_in_names(package) or name in plugin_names(package)


def built_in_names(package: str) -> list[str]:
    """Return the names of hibali's own modules, sorted, without `base` and modules with a `_` in their
    names. A package counts if it has a module `kind`.
    """
    return sorted(
        path.stem
        for path in Path(import_module(package).__path__[0]).iterdir()
        if _is_module_name(path.stem) and (path.suffix == ".py" or (path / "kind.py").exists())
    )


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
