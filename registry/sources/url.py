"""One descriptor at a URL."""

from __future__ import annotations

from collections.abc import Iterator

from hibali.strict_json import MAXIMUM_BYTES
from registry.source import Access, Candidate
from registry.web import fetch


def find_candidates(place: str, access: Access) -> Iterator[Candidate]:
    """See `Source`."""
    yield Candidate(place, fetch(place, access.origins, MAXIMUM_BYTES))
