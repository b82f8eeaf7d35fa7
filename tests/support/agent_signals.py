"""Signal the agent of a push while it writes files, on fast and slow machines."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.transfers import Transfers


def signal_working_agent(root: Path, number: int) -> int:
    """Send a signal to the agent that holds the lock, once it committed a file; return its process id."""
    lock = root / ".hibali" / "lock"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        # faster than a source watcher, which would read every state
        if lock.exists() and any(not path.name.startswith(".hibali") for path in root.iterdir()):
            holder = int(json.loads(lock.read_bytes())["pid"])
            os.kill(holder, number)
            return holder
        time.sleep(0.002)
    raise AssertionError("the agent committed no file")


def wait_for_agent_exit(there: Transfers, root: Path | None = None) -> None:
    """Wait until each agent below `root`, by default the target, has seen the end of its client: also those of further channels.

    Until then they commit and record what they received.
    """
    deadline = time.monotonic() + 60
    while there.place.word != "s3" and is_open(root or there.root):
        assert time.monotonic() < deadline, "an agent outlives its client"
        time.sleep(0.05)


def is_open(root: Path) -> bool:
    """Return whether another process has this folder or something below it open."""
    above = os.fspath(root.resolve())
    for folder in Path("/proc").glob("[0-9]*/fd"):
        if folder.parent.name != str(os.getpid()) and any(
            name == above or name.startswith(f"{above}/") for name in _opened(folder)
        ):
            return True
    return False


def _opened(folder: Path) -> Iterator[str]:
    """Yield what a process has open; nothing if it ended or belongs to another account."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                yield os.fspath(entry.readlink())
