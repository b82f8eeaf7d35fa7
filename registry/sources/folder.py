"""Read all descriptors below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hibali.errors import NotFoundError
from hibali.text import printable
from registry.problems import read_file_bytes
from registry.sources.base import Access, Candidate


def find_candidates(place: str, access: Access) -> Iterator[Candidate]:
    """See `Source`. Hidden folders, symlinks, and JSON that is not a descriptor are ignored."""
    del access
    root = Path(place)
    if not root.is_dir():
        raise NotFoundError(
            "no-such-folder", "the folder does not exist", subject=printable(os.fsencode(root))
        )
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in sorted(files):
            path = Path(folder) / name
            if name.endswith(".json") and path.is_file() and not path.is_symlink():
                candidate = Candidate(str(path), read_file_bytes(path))
                if candidate.is_descriptor:
                    yield candidate
