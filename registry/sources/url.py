"""Read one descriptor from a URL."""

from __future__ import annotations

from collections.abc import Iterator

from hibali.documents import MAXIMUM_BYTES
from hibali.http import fetch
from registry.sources.base import Access, Candidate


def find_candidates(place: str, access: Access) -> Iterator[Candidate]:
    """See `Source`."""
    yield Candidate(place, fetch(place, access.origins, MAXIMUM_BYTES))
