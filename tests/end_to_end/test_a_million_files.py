"""Test that planning a million files takes little memory, in hibali and in its agents."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from benchmarks.measuring import measure
from tests.support.transfers import Transfers
from tests.time_budget import UNTIL

# A million files take minutes to make and to remove, so the short run uses fewer.
FILES = 200_000 if UNTIL in os.environ else 1_000_000
LINKS = 50_000  # names of one inode; ext4 allows 65,000
MOST = 100_000_000  # bytes of all processes together


def make_files(root: Path, folders: int) -> None:
    """Make empty files, as hard links of few inodes, spread over that many folders."""
    below = [root / f"folder-{number:04}" if folders > 1 else root for number in range(folders)]
    for folder in below:
        folder.mkdir(parents=True)
    first = below[0] / "file-0000000"
    for number in range(FILES):
        path = below[number % folders] / f"file-{number:07}"
        if number % LINKS == 0:
            path.touch()
            first = path
        else:
            os.link(first, path)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("identical", [False, True])
@pytest.mark.parametrize("folders", [1000, 1])
def test_a_million_files_are_planned_in_little_memory(
    local_there: Transfers, folders: int, *, identical: bool
) -> None:
    there = local_there
    make_files(there.source, folders)
    if identical:
        make_files(there.root, folders)
    try:
        words = [str(word) for word in there.hibali.command("push", "-n", there.source, "there:data")]
        used = measure(words, there.hibali.env, there.folder, watch=True)
        print(f"\nlargest {used.peak / 1e6:.0f} MB, together {used.peak_of_all / 1e6:.0f} MB")
        assert 20_000_000 < used.peak < MOST
        assert used.peak <= used.peak_of_all < MOST
    finally:
        for root in (there.source, there.root):
            shutil.rmtree(root, ignore_errors=True)
