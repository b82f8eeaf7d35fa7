"""Define a remote: a place where sites exchange pipelines, which is never trusted (S13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hibali.documents import read_json
from hibali.errors import RefusedError
from hibali.files import check_private_file
from hibali.ledger import Journal, read_records
from hibali.text import printable
from registry.catalogue_folder import DESCRIPTOR
from registry.pipeline import Pipeline, catalogue_name, catalogue_version

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


def gather(files: Iterable[tuple[str, str]], subject: str) -> dict[Reference, Offer]:
    """Offers of the paths at a remote and what identifies their contents."""
    found: dict[Reference, dict[str, str]] = {}
    for path, content in files:
        parts = path.split("/")
        reference = offer_of(parts)
        if reference is not None:
            found.setdefault(reference, {})["/".join(parts[2:])] = content
        if len(found) > MOST_VERSIONS:
            raise RefusedError("too-many", f"more than {MOST_VERSIONS} versions", subject=printable(subject))
    return {reference: Offer(*reference, files) for reference, files in found.items() if DESCRIPTOR in files}


def published_digest(raw: bytes, subject: str) -> str:
    """The digest that `published.json` tells; "" where it tells none. Raises `UsageError` for what is no JSON."""
    found = read_json(raw, subject)
    digest = found.get("digest") if isinstance(found, dict) else None
    return digest if isinstance(digest, str) else ""


class KnownDigests:
    """One remote's; a file that can be thrown away."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] | None = None
        self._fresh: dict[str, str] = {}

    def digest(self, content: str) -> str | None:
        """The digest of a descriptor, None for one that was not read yet."""
        return self._fresh.get(content) or self._load().get(content)

    def add(self, content: str, digest: str) -> None:
        """It was read now."""
        self._fresh[content] = digest

    def save(self) -> None:
        """Remember what was read."""
        if self._fresh:
            with Journal(self._path) as journal:
                for content, digest in self._fresh.items():
                    journal.append({"schema": 1, "content": content, "digest": digest})
            self._load().update(self._fresh)
            self._fresh = {}

    def _load(self) -> dict[str, str]:
        if self._known is None:
            check_private_file(self._path, "what is known of the remote")
            self._known = {
                str(record.get("content")): str(record.get("digest")) for record in read_records(self._path)
            }
        return self._known
