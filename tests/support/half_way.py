"""Reaching the agent of a push while it is at work, on machines however fast."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def signal_half_way(root: Path, number: int) -> int:
    """Send a signal to the agent that holds the lock, once it has landed something; its process id."""
    lock = root / ".hibali" / "lock"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        # closer than a watcher looks, which reads all it sees
        if lock.exists() and any(not path.name.startswith(".hibali") for path in root.iterdir()):
            holder = int(json.loads(lock.read_bytes())["pid"])
            os.kill(holder, number)
            return holder
        time.sleep(0.002)
    raise AssertionError("nothing landed")
