"""Test that each command of another tool, on the page that compares it with hibali's, is one that the tool knows."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from tests.services.session import REPOSITORY
from tests.support.documentation_home import page
from tests.support.requirements import require_prepared

_OURS = REPOSITORY / ".venv/bin"
PROGRAMS = {
    "rsync": Path("/usr/bin/rsync"),
    "rclone": _OURS / "rclone",
    "globus": REPOSITORY / ".cache/globus/bin/globus",
    "datalad": _OURS / "datalad",
    "bosh": _OURS / "bosh",
    "snakemake": REPOSITORY / ".cache/snakemake/bin/snakemake",
}


_LEVELS = {"rclone": 1, "globus": 3, "datalad": 1, "bosh": 1, "bosh exec": 2}  # of commands below the program


def commands_of(tool: str) -> Iterator[list[str]]:
    """Yield the commands in the first column of a tool's table; values have upper case or a sign."""
    for row in re.findall(rf"^\| (`{tool} .*?) \| ", page("other-tools").read_text(), re.MULTILINE):
        yield from (shlex.split(code) for code in re.findall(r"`([^`]+)`", row))


def command_in(words: list[str]) -> tuple[str, ...]:
    """Return the names of commands after the program."""
    levels = _LEVELS.get(" ".join(words[:2]), _LEVELS.get(words[0], 0))
    names = takewhile(lambda word: re.fullmatch("[a-z][a-z-]*", word), words[1:])
    return tuple(names)[:levels]


def help_of(program: Path, command: tuple[str, ...]) -> str:
    """Return the help of a command; none for one that the program does not know."""
    done = subprocess.run(
        [program, *command, "--help"], capture_output=True, text=True, check=False, timeout=120
    )
    if program.name == "bosh":  # always exits with 99
        return done.stdout if done.stdout.startswith(f"usage: bosh {' '.join(command)} ") else ""
    return done.stdout if done.returncode == 0 else ""


@pytest.mark.heavy
@pytest.mark.parametrize("tool", PROGRAMS)
def test_the_tool_knows_its_commands_and_options(tool: str) -> None:
    program = PROGRAMS[tool]
    require_prepared(program, tool)
    every = help_of(program, ("help", "flags")) if tool == "rclone" else ""
    wrong = []
    commands = list(commands_of(tool))
    assert commands
    for words in commands:
        text = help_of(program, command_in(words))
        known = set(re.findall(r"(?<![\w-])--?[\w-]+", every + text))
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        wrong += [" ".join(words)] if not text or options - known else []
    assert wrong == []
    assert tool in {"rsync", "snakemake"} or not help_of(program, ("nonsense",))
