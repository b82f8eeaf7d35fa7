"""Run other programs that call `hibali` by that name, with the test's configuration."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from tests.end_to_end.run_tools import Bench
from tests.services.session import REPOSITORY


def environment_with_hibali(hibali: Any, programs: Path) -> dict[str, str]:
    """Return the environment for a program in the folder `programs`; a wrapper records each call of hibali in
    the file `calls`."""
    folder = hibali.home.folder / "programs"
    folder.mkdir()
    wrapper = folder / "hibali"
    words = shlex.join(map(str, hibali.command()))
    wrapper.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(REPOSITORY))}\nexport PYTHONPATH\necho "$@" >>{hibali.home.folder}/calls\nexec {words} "$@"\n'
    )
    wrapper.chmod(0o755)
    # the program's own Python must not find hibali's modules
    kept = {name: value for name, value in hibali.env.items() if not name.startswith("PYTHON")}
    return {**kept, "PATH": f"{folder}:{programs}:{os.environ['PATH']}"}


def calls_of(bench: Bench) -> int:
    """Return the number of calls of hibali."""
    return len((bench.folder / "calls").read_text().splitlines())
