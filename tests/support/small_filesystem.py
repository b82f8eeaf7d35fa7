"""Mount a small filesystem over a folder, and mount folders at a second path."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_filesystem(folder: Path, options: str) -> Iterator[None]:
    """Mount a tmpfs with these `options` (`size=1m`, `nr_inodes=12`); skip the test without permission."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small filesystem")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def mounted(source: Path, point: Path) -> Iterator[None]:
    """Mount `source` at `point`, too."""
    point.mkdir(parents=True, exist_ok=True)
    words = ["mount", "--bind", str(source), str(point)]
    if os.geteuid() != 0 or subprocess.run(words, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root may make a bind mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)
