"""Define a source of descriptors, and select it by the prefix of a place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hibali.documents import MAXIMUM_BYTES
from hibali.errors import UsageError
from hibali.plugins import load
from hibali.text import printable

ZENODO_ID = re.compile(
    r"(?:https://[^/]+/records?/|(?:doi:|https://doi\.org/)?10\.\d+/zenodo\.|zenodo[.-])(\d{1,12})(?:\.json)?"
)
MOST = 10_000  # descriptors from one place


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible descriptor: its bytes, and the name of its source in messages."""

    subject: str
    raw: bytes

    @property
    def is_descriptor(self) -> bool:
        """Return whether it has the keys that every descriptor has; folders can have other JSON files, too."""
        if len(self.raw) > MAXIMUM_BYTES:
            return False
        try:
            found = json.loads(self.raw)
        except (ValueError, RecursionError):
            return b'"command-line"' in self.raw
        return isinstance(found, dict) and {"command-line", "inputs"} <= found.keys()


@dataclass(frozen=True, slots=True)
class Access:
    """The access of a source: `origins` such as `http://localhost:8080` may be private and without TLS; `scratch` is a folder for downloads."""

    scratch: Path
    zenodo: str = "https://zenodo.org"
    origins: frozenset[str] = frozenset()


class Source(Protocol):
    """A kind of source."""

    def find_candidates(self, place: str, access: Access) -> Iterator[Candidate]:
        """Return the candidates at a place; raises `NotFoundError`, `TryLaterError`, `UsageError`, `RefusedError`."""


def source_name(place: str) -> str:
    """Return the module of `registry/sources/` that reads the place."""
    if place == "-":
        return "file"
    if place.startswith("bosh:"):
        return "bosh"
    if ZENODO_ID.fullmatch(place) and not Path(place).exists():
        return "zenodo"
    if place.startswith("git+") or (_is_url(place) and place.partition("#")[0].endswith(".git")):
        return "git"
    if _is_url(place):
        return "url"
    if place.endswith("/") or Path(place).is_dir():
        return "folder"
    return "file"


def find_candidates(place: str, access: Access) -> Iterator[Candidate]:
    """Return the candidates at a place of any kind."""
    source: Source = load("registry.sources", source_name(place))
    for number, candidate in enumerate(source.find_candidates(place, access)):
        if number >= MOST:
            raise UsageError("too-many", f"more than {MOST} descriptors", subject=printable(place))
        yield candidate


def _is_url(place: str) -> bool:
    return place.startswith(("https://", "http://"))
