"""Read descriptors from the cache of `bosh pull` (boutiques 0.5.33, puller.py): `bosh:` or `bosh:zenodo.123`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hibali.errors import NotFoundError, UsageError
from hibali.text import printable
from registry.problems import read_file_bytes
from registry.sources.base import ZENODO_ID, Access, Candidate


def find_candidates(place: str, access: Access) -> Iterator[Candidate]:
    """See `Source`."""
    del access
    wanted = place.removeprefix("bosh:")
    folder = Path("~/.cache/boutiques/production").expanduser()
    if wanted:
        found = ZENODO_ID.fullmatch(wanted)
        if found is None:
            raise UsageError(
                "bad-zenodo-id",
                "names in the cache of bosh have the form zenodo.1234567",
                subject=printable(place),
            )
        yield Candidate(place, read_file_bytes(folder / f"zenodo-{found[1]}.json"))
        return
    files = sorted(folder.glob("zenodo-*.json"))
    if not files:
        raise NotFoundError(
            "no-bosh-cache",
            "bosh has no cached descriptors on this machine",
            subject=str(folder),
            hint="To fetch from Zenodo directly: hibali pipelines add zenodo.1234567",
        )
    for file in files:
        yield Candidate(f"bosh:{file.stem.replace('-', '.', 1)}", read_file_bytes(file))
