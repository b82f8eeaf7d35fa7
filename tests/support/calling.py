"""A program of others that calls `hibali` by that name, with the test's own configuration."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from tests.end_to_end.run_tools import Bench
from tests.services.session import REPOSITORY


def environment_with_hibali(bench: Bench, programs: Path) -> dict[str, str]:
    """What such a program, which lies in `programs`, is started with; each line of hibali is noted in the file `calls` of the test's folder."""
    folder = bench.folder / "programs"
    folder.mkdir()
    wrapper = folder / "hibali"
    words = shlex.join(map(str, bench.hibali.command()))
    wrapper.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(REPOSITORY))}\nexport PYTHONPATH\necho "$@" >>{bench.folder}/calls\nexec {words} "$@"\n'
    )
    wrapper.chmod(0o755)
    # its own Python finds nothing of ours
    kept = {name: value for name, value in bench.hibali.env.items() if not name.startswith("PYTHON")}
    return {**kept, "PATH": f"{folder}:{programs}:{os.environ['PATH']}"}


def calls_of(bench: Bench) -> int:
    """How many lines of hibali there were."""
    return len((bench.folder / "calls").read_text().splitlines())
