"""A folder as the agent has it open."""

from __future__ import annotations

import os
from pathlib import Path

from transfers.agent.safe_path import Root


def open_root(path: Path | str) -> Root:
    """The folder, open; close it."""
    return Root(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
