"""Read descriptors from Zenodo (https://developers.zenodo.org, records; InvenioRDM has the same API)."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import new as new_hash
from typing import Any

from hibali.documents import MAXIMUM_BYTES, read_json
from hibali.errors import NotFoundError, RefusedError, TryLaterError
from hibali.http import fetch
from hibali.text import printable
from registry.sources.base import ZENODO_ID, Access, Candidate

_CHECKSUMS = {"md5", "sha256", "sha512"}


def find_candidates(place: str, access: Access) -> Iterator[Candidate]:
    """See `Source`. A record may hold several files; only descriptors are returned."""
    found = ZENODO_ID.fullmatch(place)
    assert found is not None
    subject = f"zenodo.{found[1]}"
    record = read_json(
        fetch(f"{access.zenodo}/api/records/{found[1]}", access.origins, MAXIMUM_BYTES), subject
    )
    offered = [each for each in _files(record) if _name(each).endswith(".json")]
    count = 0
    for each in offered:
        candidate = Candidate(f"{subject}/{_name(each)}", _content(each, subject, access))
        if len(offered) == 1 or candidate.is_descriptor:
            count += 1
            yield candidate
    if not count:
        raise NotFoundError("no-descriptor", "the record has no Boutiques descriptor", subject=subject)


def _content(file: dict[str, Any], subject: str, access: Access) -> bytes:
    """Download a file and compare its checksum."""
    links = file.get("links")
    url = links.get("self") or links.get("content") if isinstance(links, dict) else None
    if not isinstance(url, str):
        raise TryLaterError("bad-answer", "the record does not say where its files are", subject=subject)
    raw = fetch(url, access.origins, MAXIMUM_BYTES)
    kind, _, digest = str(file.get("checksum", "")).partition(":")
    if kind in _CHECKSUMS and new_hash(kind, raw, usedforsecurity=False).hexdigest() != digest:
        raise RefusedError(
            "content-differs",
            f"the downloaded file has another {kind} than the record says ({printable(digest)})",
            subject=f"{subject}/{printable(_name(file))}",
        )
    return raw


def _files(record: Any) -> list[dict[str, Any]]:
    files = record.get("files") if isinstance(record, dict) else None
    return [each for each in files if isinstance(each, dict)] if isinstance(files, list) else []


def _name(file: dict[str, Any]) -> str:
    name = file.get("key") or file.get("filename")
    return name if isinstance(name, str) else ""
