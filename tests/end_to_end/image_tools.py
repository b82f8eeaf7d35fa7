"""Make container images for the tests of runs, start their runtimes, and add images to the catalogue."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.services.podman import write_tools
from tests.services.processes import MissingPackageError, program
from tests.support.requirements import skip_or_fail

# those that convert an image of the catalogue
RUNTIMES = [
    "bubblewrap",
    *(
        pytest.param(word, marks=pytest.mark.heavy)
        for word in ("charliecloud", "podman", "docker", "apptainer")
    ),
]
_NEEDS = {"bubblewrap": ("bwrap", "bubblewrap"), "charliecloud": ("ch-convert", "charliecloud")}


@dataclass(frozen=True)
class Tool:
    """An image in an archive that no other test uses."""

    archive: Path
    name: str


def make_tool(folder: Path) -> Tool:
    """Write a new image to the folder; skip the test if a program for it is missing."""
    made = Tool(folder / "tool.tar", f"localhost/hibali-{secrets.token_hex(6)}:1")
    try:
        write_tools(made.archive, made.name, {"mark": made.name.encode()})
    except MissingPackageError as problem:
        skip_or_fail(str(problem))
    return made


def ready(word: str, request: pytest.FixtureRequest, hibali: Any) -> None:
    """Prepare the container runtime, or skip the test with the name of the missing program."""
    if word in _NEEDS:
        try:
            program(*_NEEDS[word])
        except MissingPackageError as problem:
            skip_or_fail(str(problem))
    elif word == "apptainer":
        if shutil.which("apptainer") is None:
            pytest.skip("apptainer is in no package of Debian, PyPI or npm, and not installed here")
    else:
        hibali.env |= request.getfixturevalue(word).env


def catalogued(bench: Bench, tool: Tool) -> str:
    """Make the archive the image of the bench's pipeline, and return the image's id."""
    line = ("pipelines", "image", "add", bench.reference, "--archive", tool.archive, "--json")
    return str(bench.hibali(*line, exit=0).last["id"])
