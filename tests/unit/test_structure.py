"""Test that no modules import each other, even indirectly."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.services.session import REPOSITORY

PACKAGES = ("hibali", "hibali_api", "hibali_cli", "hibali_plugins", "registry", "runs", "transfers")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")


PATHS = {module_of(path): path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")}


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Yield all imports, also those inside functions and for types only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in PATHS else str(node.module)


def test_there_are_no_circular_imports() -> None:
    imports = {
        name: {found for found in imports_of(ast.parse(path.read_bytes())) if found in PATHS} - {name}
        for name, path in PATHS.items()
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as problem:
        raise AssertionError(" -> ".join(problem.args[1])) from None


def test_package_modules_contain_only_a_docstring() -> None:
    """Python runs `__init__.py` before each module of a package, so its imports slow down all of them."""
    known = {"hibali": "its version and the names of the API", "hibali_cli.commands": "names of modules"}
    for name, path in PATHS.items():
        if path.name == "__init__.py" and name not in known:
            body = ast.parse(path.read_bytes()).body
            assert [type(each) for each in body] in ([ast.Expr], []), name
