"""Open a folder as the agent does."""

from __future__ import annotations

import os
from pathlib import Path

from transfers.agent.safe_path import Root


def open_root(path: Path | str) -> Root:
    """Open the folder; the caller closes it."""
    return Root(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
