"""Make the reference page of the Python API from its signatures and docstrings."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from itertools import chain
from types import FunctionType, ModuleType

import hibali


def python_page() -> str:
    """Return the page of all public names of `hibali`."""
    lines = ["# Python API", "", "`import hibali`; the page [Python](../python.md) introduces it.", ""]
    options = _options()
    for name in dir(hibali):
        value = getattr(hibali, name)
        if name in options:
            continue  # after the functions
        if isinstance(value, ModuleType):
            lines += _module(f"hibali.{name}", value)
        elif callable(value):
            lines += _item(f"hibali.{name}", value, level=2)
    for name, declared in sorted(options.items()):
        full = f"hibali.{name}" if name in dir(hibali) else name
        lines += (f"## `{full}`", "", "```text", inspect.getdoc(declared) or "", "```", "")
    return "\n".join(lines) + "\n"


def _options() -> dict[str, type]:
    """Return the declarations of options that functions take as `**options`, by name."""
    public = [getattr(hibali, name) for name in dir(hibali)]
    places = (vars(value).values() for value in public if inspect.ismodule(value) or inspect.isclass(value))
    functions = filter(inspect.isfunction, (*public, *chain.from_iterable(places)))
    return {each.__name__: each for value in functions if (each := _declaration(value)) is not None}


def _declaration(function: FunctionType) -> type | None:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            name = str(parameter.annotation).removeprefix("Unpack[").removesuffix("]")
            found: type | None = getattr(sys.modules[function.__module__], name, None)
            return found
    return None


def _module(name: str, module: ModuleType) -> Iterator[str]:
    yield from (f"## `{name}`", "", inspect.getdoc(module) or "", "")
    for each, value in sorted(vars(module).items()):
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not each.startswith("_"):
            yield from _item(f"{name}.{each}", value, level=3)


def _item(name: str, value: object, *, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} `{name}`", "", "```python", f"{name}{_signature(value)}", "```", "")
    yield from ("```text", inspect.getdoc(value) or "", "```", "")
    if inspect.isclass(value):
        for each, member in sorted(vars(value).items()):
            if not each.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                yield from _item(f"{name}.{each}", member, level=level + 1)


def _signature(value: object) -> str:
    if isinstance(value, property):
        value = value.fget
    if not callable(value):
        return ""
    try:
        return str(inspect.signature(value)).replace("'", "")
    except ValueError:
        return ""
