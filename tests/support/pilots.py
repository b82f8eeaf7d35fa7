"""What a pilot leaves in its run's folder, and which processes it is."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


def journal(folder: Path, chunk: int = 1) -> list[dict[str, Any]]:
    """The lines of an allocation's journal, once it has begun one."""
    path = folder / "chunks" / str(chunk) / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pilot_pids(folder: Path) -> list[int]:
    """The processes that run tasks of a run now: those of HyperQueue, not the tasks."""
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
    """The processes whose current folder this is: of a task's own folder, its script."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found
