"""A tool for sweeps, and what its runs left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.end_to_end.run_tools import DESCRIPTOR, Bench


def descriptor_in(folder: Path) -> dict[str, Any]:
    """A tool that notes each time it runs, and fails as told until somebody has mended what it needs.

    A sleep that a signal to the job ends before the tool's own turn comes ends the tool by that signal, too.
    """
    command = (
        f"cat [IN] [MORE] >[OUT]; echo [SAY] >>[OUT]; echo [SAY] >>{folder}/ran; echo said; sleep [SLEEP] || kill $$;"
        f" test -e {folder}/mended || exit [CODE]"
    )
    return {**DESCRIPTOR, "command-line": command}


def ran(bench: Bench) -> list[str]:
    """What the tools noted, sorted: one word each time one ran."""
    path = bench.folder / "ran"
    return sorted(path.read_text().split()) if path.exists() else []
