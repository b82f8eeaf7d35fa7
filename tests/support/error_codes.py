"""Find the error codes in the sources without running anything."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator

from tests.support.documented_commands import REPOSITORY

PACKAGES = ("hibali", "hibali_api", "transfers", "registry", "runs", "hibali_cli")
_CODE = re.compile(r"[a-z]+(-[a-z0-9]+)*")


@functools.cache
def error_codes() -> dict[str, list[str]]:
    """Return every code passed to an error, or to a function or value with a `code`, with its locations
    (`file:line`)."""
    paths = [path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")]
    positions = defaultdict(set)
    for path in paths:  # parsed twice: all trees at once would be hundreds of megabytes
        for name, position in _code_parameters(ast.parse(path.read_text())):
            positions[name].add(position)
    codes = defaultdict(list)
    for path in paths:
        tree = ast.parse(path.read_text())
        constants = dict(_constants(tree))
        others = set(_without_code(tree))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            at = set() if _name(call) in others else positions.get(_name(call), set())
            found = [*_codes_of(call, at, constants), *_unknown_plugins(call)]
            for code in found:
                codes[code].append(f"{path.relative_to(REPOSITORY)}:{call.lineno}")
    return dict(codes)


def _without_code(tree: ast.Module) -> Iterator[str]:
    """Yield the name of a module's problems of documents, which have a path instead of a code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "registry.problems":
            yield from (each.name for each in node.names if each.name == "Problem")


def _code_parameters(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield functions and classes that take `code` as a positional argument, with its position."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [
                each.arg for each in node.args.posonlyargs + node.args.args if each.arg not in {"self", "cls"}
            ]
        elif isinstance(node, ast.ClassDef):
            fields = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
            names = [field.id for field in fields if isinstance(field, ast.Name)]
        else:
            continue
        if "code" in names:
            yield node.name, names.index("code")


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names and values of the module's constants, which may be codes."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _unknown_plugins(call: ast.Call) -> Iterator[str]:
    """Yield the code with which `hibali.plugins.load` refuses a name, as in `load("runs.schedulers", name)`."""
    match call:
        case ast.Call(func=ast.Name(id="load"), args=[ast.Constant(value=str(package)), _]):
            yield f"unknown-{package.rpartition('.')[2].removesuffix('s')}"


def _codes_of(call: ast.Call, positions: set[int], constants: dict[str, ast.expr]) -> Iterator[str]:
    given = [call.args[position] for position in positions if position < len(call.args)]
    given += [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    if _name(call).endswith("Error"):
        given += call.args[:1]
    for each in given:
        for choice in (each.body, each.orelse) if isinstance(each, ast.IfExp) else (each,):
            value = constants.get(choice.id) if isinstance(choice, ast.Name) else choice
            if (
                isinstance(value, ast.Constant)
                and isinstance(value.value, str)
                and _CODE.fullmatch(value.value)
            ):
                yield value.value
