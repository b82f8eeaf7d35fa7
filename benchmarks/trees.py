"""Create, copy, count and remove the files of a benchmark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.samples import Amount

_PIECE = 4 << 20
FOLDER_FILES = 100  # files per folder, unless the number of folders is given


def make_tree(root: Path, amount: Amount, *, folders: int = 0) -> Amount:
    """Create files of equal size with random (incompressible) content; return the amount created."""
    each = amount.size // amount.files
    folders = folders or -(-amount.files // FOLDER_FILES)
    for number in range(folders):
        (root / f"folder-{number:04}" if folders > 1 else root).mkdir(parents=True, exist_ok=True)
    for number in range(amount.files):
        parent = root / f"folder-{number % folders:04}" if folders > 1 else root
        _write(parent / f"file-{number:07}", each)
    os.sync()
    return Amount(amount.files, each * amount.files)


def _write(path: Path, size: int) -> None:
    with path.open("wb", buffering=0) as file:
        while size > 0:
            size -= file.write(os.urandom(min(size, _PIECE)))


def copy_tree(source: Path, target: Path) -> None:
    """Copy names, contents and times."""
    shutil.copytree(source, target, dirs_exist_ok=True)


def count_tree(root: Path) -> Amount:
    """Count the complete files, without hibali's temporary ones."""
    files = size = 0
    for status in _files(root):
        files, size = files + 1, size + status.st_size
    return Amount(files, size)


def _files(root: Path) -> Iterator[os.stat_result]:
    with os.scandir(root) as found:
        for entry in found:
            if entry.name.startswith(".hibali"):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            else:
                yield entry.stat(follow_symlinks=False)


def remove_tree(root: Path) -> None:
    """Remove a tree and flush the disk's write queue, so that the next run is not slowed down."""
    shutil.rmtree(root, ignore_errors=True)
    os.sync()
