"""Convert text, and run the command line of a descriptor with the shell of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hibali_plugins.formats.conversion import Conversion
from hibali_plugins.formats.reading import Naming, import_description
from registry.command_line import build_command_line
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation
from registry.pipeline import Pipeline

SHOW = "import json, sys; open('words.json', 'w').write(json.dumps(sys.argv[1:]))"


def convert(
    folder: Path, name: str, text: str, *, kind: str = "", naming: Naming | None = None
) -> tuple[Pipeline, Conversion]:
    """Write a file, and return the pipeline made of it."""
    (folder / name).write_text(text)
    made = import_description(folder / name, kind, naming or Naming())
    return read_descriptor(json.dumps(made.document).encode(), name), made


def run_here(pipeline: Pipeline, values: dict[str, Any], folder: Path, *, shell: str = "sh") -> None:
    """Run the command line of an invocation in a folder, with its configuration files."""
    folder.mkdir(exist_ok=True)
    command = build_command_line(pipeline, check_invocation(pipeline, values), work_folder=str(folder))
    for each in command.configuration_files:
        (folder / each.path).write_text(each.content)
    environment = {**os.environ, **command.environment}
    subprocess.run([shell, "-c", command.script], cwd=folder, env=environment, check=True, timeout=60)


def words_of(pipeline: Pipeline, values: dict[str, Any], folder: Path, *, shell: str = "sh") -> list[str]:
    """Return the words that the program gets, if it is `show_program(folder)`."""
    run_here(pipeline, values, folder, shell=shell)
    found: list[str] = json.loads((folder / "words.json").read_text())
    return found


def show_program(folder: Path) -> str:
    """Write a program that notes its arguments in `words.json`, and return its path."""
    path = folder / "show"
    path.write_text(f"#!{sys.executable}\n{SHOW}\n")
    path.chmod(0o755)
    return str(path)
