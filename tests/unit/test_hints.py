"""Test that every command in an error's hint is valid."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hibali.plugins import if_offered
from tests.support.command_tree import check_call

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("hibali", "transfers", "registry", "runs", "hibali_cli", "hibali_plugins")
# A command in backticks, or from the beginning or a colon to the end of the text.
LINE = re.compile(r"`(hibali [^`]+)`|(?:^|(?<=: ))(hibali [a-z][^`]*)$")
MENTION = re.compile(r"`hibali run` line")  # a command that the user typed before


def text_of(node: ast.expr) -> str | None:
    """Return a string of the sources, with X for each inserted value."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.FormattedValue) else part for part in node.values)
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else offered(part) or "X" for part in parts
        )
    return offered(node)


def offered(node: ast.expr) -> str | None:
    """Return the hint that a call of `if_offered` returns here; None for anything else."""
    match node:
        case ast.Call(func=ast.Name(id="if_offered"), args=[ast.Constant(value=str(name)), hint]):
            return if_offered(name, text_of(hint) or "")
    return None


def texts_in(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the complete strings in an expression, not parts of an f-string."""
    text = text_of(node) if isinstance(node, ast.expr) else None
    if text is not None:
        yield node.lineno, text  # type: ignore[attr-defined]
        return
    for below in ast.iter_child_nodes(node):
        yield from texts_in(below)


def hints_in(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the values of `hint=`, of variables and functions named `hint`, and the `fix` argument of `warn`."""
    match node:
        case ast.keyword(arg="hint", value=value) | ast.Assign(targets=[ast.Name(id="hint")], value=value):
            yield value
        case ast.FunctionDef(name="hint" | "_hint"):
            yield from (each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value)
        case ast.Call(func=ast.Attribute(attr="warn"), args=[_, _, fix]):
            yield fix


def hints() -> Iterator[tuple[str, str]]:
    """Yield the location and the text of each hint: those of errors and the fixes of `doctor`."""
    for package in PACKAGES:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            source = path.read_text()
            if "hint" not in source and ".warn(" not in source:
                continue
            for node in ast.walk(ast.parse(source)):
                for each in hints_in(node):
                    for line, text in texts_in(each):
                        yield f"{path.relative_to(REPOSITORY)}:{line}", text


def lines_in(text: str) -> list[str]:
    """Return the commands that a hint names."""
    return [one or other for one, other in LINE.findall(MENTION.sub("", text))]


def check_line(line: str) -> None:
    """Raise `click.UsageError` if the line is not a valid command."""
    check_call(shlex.split(re.split(r" (?:>|&&|\|) ", line)[0])[1:], whole=True)


def test_every_hint_can_be_pasted() -> None:
    checked, wrong = 0, []
    for where, text in hints():
        if "hibali " not in MENTION.sub("", text) or "git annex" in text:
            continue
        lines = lines_in(text)
        if not lines and re.search(r"hibali [a-z]+ [a-z-]", text):
            wrong.append(f"{where}: a command inside a sentence: {text}")
        for line in lines:
            checked += 1
            try:
                check_line(line)
            except click.UsageError as problem:
                wrong.append(f"{where}: {line}: {problem.format_message()}")
    assert not wrong, "\n".join(wrong)
    assert checked > 50


def test_a_command_of_a_folder_is_named_elsewhere_only_if_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "if_offered", lambda _name, _hint: "")
    owners: dict[str, str] = {}
    requires = set()
    for path in (REPOSITORY / "hibali_plugins").glob("*/entry_points.txt"):
        groups = path.read_text().split("[hibali.")
        points = {part.partition("]")[0]: part.partition("]")[2].split("\n") for part in groups}
        commands = (line.partition(" = ")[0] for line in points.get("commands", []) if line)
        owners |= {f"hibali {each.replace('.', ' ')} ": path.parent.name for each in commands}
        requires |= {
            (path.parent.name, line.partition(" = ")[0]) for line in points.get("requires", []) if line
        }
    wrong = [
        f"{where}: {line}"
        for where, text in hints()
        for line in lines_in(text)
        for command, owner in owners.items()
        if f"{line} ".startswith(command)
        and not where.startswith(f"hibali_plugins/{owner}/")
        and (where.split("/")[1], owner) not in requires
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "hibali site list",
        "hibali sites lst",
        "hibali sites show",
        "hibali ls a: b:",
        "hibali push a b --nope",
    ],
)
def test_the_check_detects_invalid_commands(line: str) -> None:
    with pytest.raises(click.UsageError):
        check_line(line)
