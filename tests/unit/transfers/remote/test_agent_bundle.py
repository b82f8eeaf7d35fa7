"""Test that the bundled agent equals the tested modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import transfers.agent
from transfers.remote import connection

MODULES = sorted(Path(transfers.agent.__file__).parent.glob("[a-z]*.py"))


class _Docstrings(ast.NodeTransformer):
    """Empty all docstrings."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = ""
        return node


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_bundle_omits_only_comments_and_docstrings(module: Path) -> None:
    whole = module.read_text("utf-8")
    sent = connection._without_comments(whole)
    expected = ast.dump(_Docstrings().visit(ast.parse(whole)))
    assert ast.dump(ast.parse(sent)) == expected
    assert ast.get_docstring(ast.parse(sent)) == ""
    lines = {node.lineno for node in ast.walk(ast.parse(sent)) if isinstance(node, ast.stmt)}
    assert lines <= {node.lineno for node in ast.walk(ast.parse(whole)) if isinstance(node, ast.stmt)}


def test_bundle_runs_without_hibali_installed(tmp_path: Path) -> None:
    """A process with only the standard library prints its nonce and can import every module."""
    names = [f"transfers.agent.{module.stem}" for module in MODULES]
    script = tmp_path / "try.py"
    script.write_text(
        connection._source().decode("ascii")
        + f"\nimport importlib\nfor name in {names!r}:\n    importlib.import_module(name)\nprint('all of them')\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "all of them\n"
