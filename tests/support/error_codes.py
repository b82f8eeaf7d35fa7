"""Find the error codes in the sources without running anything."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.documented_commands import REPOSITORY

PACKAGES = ("hibali", "hibali_api", "transfers", "registry", "runs", "hibali_cli", "hibali_plugins")
_CODE = re.compile(r"[a-z]+(-[a-z0-9]+)*")


class _Call(NamedTuple):
    """What a call may give as a code, before all parameters named `code` are known."""

    location: str
    name: str
    by_position: dict[int, list[str]]
    certain: list[str]


@functools.cache
def error_codes() -> dict[str, list[str]]:
    """Return every code passed to an error, or to a function or value with a `code`, with its locations
    (`file:line`)."""
    positions: dict[str, set[int]] = defaultdict(set)
    calls: list[_Call] = []  # not the trees: all at once would be hundreds of megabytes
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*.py"):
            tree = ast.parse(path.read_bytes())
            nodes = list(ast.walk(tree))
            for name, position in _code_parameters(nodes):
                positions[name].add(position)
            calls += _calls(str(path.relative_to(REPOSITORY)), nodes, dict(_constants(tree)))
    codes = defaultdict(list)
    for call in calls:
        given = [code for at in positions.get(call.name, ()) for code in call.by_position.get(at, ())]
        for code in given + call.certain:
            codes[code].append(call.location)
    return dict(codes)


def _calls(path: str, nodes: list[ast.AST], constants: dict[str, ast.expr]) -> Iterator[_Call]:
    others = set(_without_code(nodes))
    for node in nodes:
        if isinstance(node, ast.Call):
            name = _name(node)
            by_position = {at: list(_codes_in(each, constants)) for at, each in enumerate(node.args)}
            named = [each.value for each in node.keywords if each.arg == "code"]
            certain = [code for each in named for code in _codes_in(each, constants)]
            if name.endswith("Error"):
                certain += by_position.get(0, [])
            certain += _unknown_plugins(node)
            if certain or any(by_position.values()):
                yield _Call(f"{path}:{node.lineno}", "" if name in others else name, by_position, certain)


def _without_code(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the name of a module's problems of documents, which have a path instead of a code."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "registry.problems":
            yield from (each.name for each in node.names if each.name == "Problem")


def _code_parameters(nodes: list[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield functions and classes that take `code` as a positional argument, with its position."""
    for node in nodes:
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


def _codes_in(given: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    for choice in (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,):
        value = constants.get(choice.id) if isinstance(choice, ast.Name) else choice
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and _CODE.fullmatch(value.value):
            yield value.value
