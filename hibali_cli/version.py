"""Show the version without importing anything slow."""

from __future__ import annotations

import sys

from hibali import __version__
from hibali_cli.output import discard_results


def show_version() -> int:
    """Print the version; returns 6 where stdout cannot be written."""
    try:
        sys.stdout.write(f"hibali {__version__}\n")
        sys.stdout.flush()
    except (OSError, AttributeError):
        discard_results()
        return 6
    return 0
