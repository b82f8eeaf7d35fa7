"""Read one descriptor from a file or standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from hibali.documents import MAXIMUM_BYTES
from registry.problems import read_file_bytes
from registry.sources.base import Access, Candidate


def find_candidates(place: str, access: Access) -> Iterator[Candidate]:
    """See `Source`."""
    del access
    if place == "-":
        yield Candidate("standard input", sys.stdin.buffer.read(MAXIMUM_BYTES + 1))
    else:
        yield Candidate(place, read_file_bytes(Path(place)))
