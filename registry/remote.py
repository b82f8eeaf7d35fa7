"""What a remote is: a place where sites leave pipelines for each other. It is data, and believed nothing (S13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hibali.errors import RefusedError
from hibali.strict_json import read_json
from hibali.text import printable
from registry.pipeline import Pipeline, catalogue_name, catalogue_version
from registry.shelf import DESCRIPTOR

PUBLISHED = "published.json"
LARGEST_FILE = 4 * 1024 * 1024  # bytes, of a descriptor or of what lies beside it; images lie elsewhere
MOST_VERSIONS = 100_000
Reference = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Parcel:
    """One version on its way: its files by their names in the version's folder."""

    name: str
    version: str
    files: Mapping[str, bytes]

    @property
    def reference(self) -> str:
        """NAME@VERSION, as users write it."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Offer:
    """One version that lies at a remote: what identifies the content of each file there, by the file's name."""

    name: str
    version: str
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """NAME@VERSION, as users write it."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A version that came and was found right, with the files beside its descriptor."""

    pipeline: Pipeline
    beside: Mapping[str, bytes]


class Look(Protocol):
    """A remote as it was at one moment."""

    def offers(self) -> Mapping[Reference, Offer]:
        """Every version there; what has another shape is passed over. Raises `RefusedError` for more than is sane."""

    def read(self, wanted: Sequence[str]) -> Iterable[bytes]:
        """Contents in the order they were asked for, each at most `LARGEST_FILE`."""

    def publish(self, parcels: Sequence[Parcel], message: str) -> bool:
        """Add files, all or none seen by others where the remote can do that; False where somebody else was first."""


class Remote(Protocol):
    """One kind of remote."""

    def look(self, *, accept_rewritten: bool = False, make: bool = False) -> Look:
        """What lies there now; raises `TryLaterError` where it cannot be reached, `RefusedError` where its history was rewritten.

        With `make` a dataset that is not there yet is made, where the kind of remote knows what to make.
        """


@dataclass(frozen=True, slots=True)
class Meeting:
    """A remote by its name and URL, and the folder in which its kind may keep what it needs."""

    name: str
    url: str
    folder: Path


def offer_of(parts: Sequence[str]) -> Reference | None:
    """Name and version of a file's path `NAME/VERSION/...`; None for one that no catalogue would have written."""
    if len(parts) < 3 or not {"", ".", ".."}.isdisjoint(
        parts
    ):  # git itself lets such names pass with a warning
        return None
    name, version = parts[:2]
    try:
        sane = catalogue_name(name) == name and catalogue_version(version) == version
    except Exception:  # noqa: BLE001  # whatever it says of it, it is no name
        return None
    return (name, version) if sane else None


def gather(files: Iterable[tuple[str, str]], about: str) -> dict[Reference, Offer]:
    """Offers of the paths at a remote and what identifies their contents."""
    found: dict[Reference, dict[str, str]] = {}
    for path, content in files:
        parts = path.split("/")
        reference = offer_of(parts)
        if reference is not None:
            found.setdefault(reference, {})["/".join(parts[2:])] = content
        if len(found) > MOST_VERSIONS:
            raise RefusedError("too-many", f"more than {MOST_VERSIONS} versions", about=printable(about))
    return {reference: Offer(*reference, files) for reference, files in found.items() if DESCRIPTOR in files}


def published_digest(raw: bytes, about: str) -> str:
    """The digest that `published.json` tells; "" where it tells none. Raises `UsageError` for what is no JSON."""
    found = read_json(raw, about)
    digest = found.get("digest") if isinstance(found, dict) else None
    return digest if isinstance(digest, str) else ""
