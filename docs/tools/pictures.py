"""Draw what commands print on a terminal of 80 columns, from a small ledger, as SVG."""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
from rich.console import Console
from rich.text import Text

from hibali_cli.root import root, run_command

_COMMANDS = {"runs-list.svg": ["runs", "list"], "history.svg": ["history"]}
_COLUMNS = 80
_NOW = datetime(2026, 11, 30, 18, 52, tzinfo=UTC)
_FROM_ELSEWHERE = re.compile(
    r"\s*@font-face \{.*?\}\n|\s*<!--.*?-->", re.DOTALL
)  # a browser would load the fonts
_DIGEST = "0" * 64
_RUNS = [
    ("20251204-091502-5be0a97c", "nib-conform@5.3.2", "juwels", "pilot", "SUCCEEDED"),
    ("20261126-140310-0a1b2c3d", "nib-conform@5.3.2", "juwels", "", "FAILED"),
    ("20261130-083911-a5a41df7", "bet@1.0.0", "lab_HPC", "sub-01", "SUCCEEDED"),
    ("20261130-164702-c07f3e12", "bet@1.0.0", "lab_HPC", "sub-02", "RUNNING"),
]
_OPERATIONS = [
    ("20251204-091400-91d2e0b4", "push", "raw", "juwels:@scratch/study/raw", 4210, 61_300_000_000, 0),
    ("20261126-150122-4c1fa6d8", "pull", "juwels:@scratch/study/derived", "derived", 96, 1_240_000_000, 6),
    ("20261130-083900-e6b7710f", "sync", "/data/study/raw/sub-01", "lab_HPC:study/raw/sub-01", 12, 384_000_000, 0),
]  # fmt: skip


def pictures() -> dict[str, str]:
    """Return the name and the text of each picture; reproducible."""
    known = root.list_commands(click.Context(root))
    with sample_ledger():
        return {name: _draw(name, command) for name, command in _COMMANDS.items() if command[0] in known}


def _draw(name: str, command: list[str]) -> str:
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ hibali {' '.join(command)}", style="bold green"))
    console.print(Text.from_ansi(terminal_output(command, _COLUMNS)))
    drawn = console.export_svg(title="", unique_id=f"hibali-{name.removesuffix('.svg')}")
    return re.sub(r"[ \t]+\n", "\n", _FROM_ELSEWHERE.sub("", drawn))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_output(command: list[str], columns: int) -> str:
    """Return what a command prints on a terminal of so many columns."""
    with (
        patch.dict(os.environ, {"COLUMNS": str(columns)}),
        patch("hibali_cli.cells.local_now", lambda: _NOW),
        redirect_stdout(_Terminal()) as shown,
    ):
        code = run_command(command)
    assert code == 0, command
    return shown.getvalue()


@contextmanager
def sample_ledger() -> Iterator[Path]:
    """Use a state folder with a few runs and operations, and the time zone UTC; yield the folder around it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for names, records in _journals():
            path = folder.joinpath("state", *names)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_text("".join(json.dumps({"schema": 1, **each}) + "\n" for each in records))
        settings = {"HIBALI_STATE": f"{name}/state", "HIBALI_CONFIG": f"{name}/config.toml"}
        try:
            with patch.dict(os.environ, {**settings, "TERM": "xterm", "TZ": "UTC"}):
                os.environ.pop("NO_COLOR", None)
                time.tzset()
                yield folder
        finally:
            time.tzset()


def _journals() -> Iterator[tuple[tuple[str, str], list[dict[str, Any]]]]:
    for identifier, pipeline, site, name, state in _RUNS:
        prepared = {"id": identifier, "key": _DIGEST, "pipeline": pipeline, "pipeline_digest": _DIGEST}
        place = {"site": site, "name": name, "scheduler": "slurm", "container": "apptainer", "outputs": []}
        at = _began(identifier)
        seen = {"kind": "seen", "at": at, "state": state, "native": state, "reason": ""}
        yield ("runs", f"{identifier}.jsonl"), [{"kind": "prepared", "at": at, **prepared, **place}, seen]
    for identifier, operation, source, target, files, size, code in _OPERATIONS:
        common = {"id": identifier, "operation": operation, "source": source, "target": target}
        counts = {"files": files, "bytes": size, "files_moved": files, "bytes_moved": size}
        begun = {"kind": "operation", "at": _began(identifier), **common}
        receipt = {"kind": "receipt", **common, **counts, "proof_moved": "digest", "exit": code}
        yield ("operations", f"{identifier}.jsonl"), [begun, receipt]


def _began(identifier: str) -> str:
    return f"{datetime.strptime(identifier[:15], '%Y%m%d-%H%M%S').replace(tzinfo=UTC).isoformat()}"
