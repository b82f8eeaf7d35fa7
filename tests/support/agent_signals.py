"""Signal the agent of a push while it writes files, on fast and slow machines."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from tests.support.transfers import Transfers
from transfers.agent.lease import process_start


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


def wait_for_agent_exit(there: Transfers) -> None:
    """Wait until the agent has seen the end of its client."""
    deadline = time.monotonic() + 20
    while there.place.word != "s3" and _holder_lives(there.root / ".hibali" / "lock"):
        assert time.monotonic() < deadline, "the agent outlives its client"
        time.sleep(0.05)


def _holder_lives(lock: Path) -> bool:
    """Return whether the agent holding a lock on this host still runs; a killed one leaves its lock."""
    try:
        pid = json.loads(lock.read_bytes())["pid"]
    except (FileNotFoundError, ValueError):
        return False
    return bool(process_start(pid))
