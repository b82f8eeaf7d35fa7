"""Read the journal of a pilot in its run's folder, and find its processes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


def journal(folder: Path, chunk: int = 1) -> list[dict[str, Any]]:
    """Return the lines of an allocation's journal, once it exists."""
    path = folder / "chunks" / str(chunk) / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pilot_pids(folder: Path) -> list[int]:
    """Return the HyperQueue processes that run tasks of a run, without the tasks."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
            here = (process / "cwd").readlink() if b"../../pilot/program.py" in words else None
        except OSError:
            continue
        if here is not None and here.is_relative_to(folder):
            found.append(int(process.name))
    return found


def processes_in(folder: Path) -> list[int]:
    """Return the processes whose current folder this is: for a task's folder, its script."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found
