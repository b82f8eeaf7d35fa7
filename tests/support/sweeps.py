"""Define a tool for sweeps, and read the record of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.end_to_end.run_tools import DESCRIPTOR, Bench


def descriptor_in(folder: Path) -> dict[str, Any]:
    """Return a tool that records each run, and fails as configured until its requirement exists.

    If a signal to the job ends the tool's sleep, it ends the tool by that signal, too.
    """
    command = (
        f"cat [IN] [MORE] >[OUT]; echo [SAY] >>[OUT]; echo [SAY] >>{folder}/ran; echo said; sleep [SLEEP] || kill $$;"
        f" test -e {folder}/mended || exit [CODE]"
    )
    return {**DESCRIPTOR, "command-line": command}


def ran(bench: Bench) -> list[str]:
    """Return the recorded words, sorted, one per run."""
    path = bench.folder / "ran"
    return sorted(path.read_text().split()) if path.exists() else []
