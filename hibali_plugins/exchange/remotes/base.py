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
from registry.pipeline import Versioned, catalogue_name, catalogue_version

PUBLISHED = "published.json"
LARGEST_FILE = 4 * 1024 * 1024  # bytes, of a descriptor or an attachment; images are stored elsewhere
MOST_VERSIONS = 100_000
Reference = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Upload(Versioned):
    """A version to be published: its files by their names in the version's folder."""

    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Offer(Versioned):
    """A version at a remote: the identifier of the content of each file, by the file's name."""

    files: Mapping[str, str] = field(default_factory=dict)


class Snapshot(Protocol):
    """The content of a remote at one moment."""

    def offers(self) -> Mapping[Reference, Offer]:
        """Return every version at the remote; other files are ignored. Raises `RefusedError` for too many."""

    def read(self, wanted: Sequence[str]) -> Iterable[bytes]:
        """Read contents in the given order, each at most `LARGEST_FILE`."""

    def publish(self, uploads: Sequence[Upload], message: str) -> bool:
        """Add files, atomically where the remote can do that; False where another process published first."""


class Remote(Protocol):
    """A kind of remote."""

    def take_snapshot(self, *, accept_rewritten: bool = False, make: bool = False) -> Snapshot:
        """Read the present content of the remote; raises `TryLaterError` where it is unreachable, `RefusedError` where its history was rewritten.

        With `make`, create a missing dataset, where the kind of remote can do that.
        """


@dataclass(frozen=True, slots=True)
class RemoteSpec:
    """A remote's name and URL, and the folder where its kind can store state."""

    name: str
    url: str
    folder: Path


def offer_of(parts: Sequence[str]) -> Reference | None:
    """Return name and version of a file's path `NAME/VERSION/...`; None for one that no catalogue writes."""
    if len(parts) < 3 or not {"", ".", ".."}.isdisjoint(parts):  # git accepts such names with a warning
        return None
    name, version = parts[:2]
    try:
        sane = catalogue_name(name) == name and catalogue_version(version) == version
    except Exception:  # noqa: BLE001  # any exception means that it is not a name
        return None
    return (name, version) if sane else None


def gather(files: Iterable[tuple[str, str]], subject: str) -> dict[Reference, Offer]:
    """Return the versions of paths at a remote, with the identifiers of their contents."""
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
    """Return the digest in `published.json`; "" where it has none. Raises `UsageError` for invalid JSON."""
    found = read_json(raw, subject)
    digest = found.get("digest") if isinstance(found, dict) else None
    return digest if isinstance(digest, str) else ""


class KnownDigests:
    """The digests of contents at one remote, cached in a file that can be deleted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] | None = None
        self._fresh: dict[str, str] = {}

    def digest(self, content: str) -> str | None:
        """Return the digest of a content, None where it was not read yet."""
        return self._fresh.get(content) or self._load().get(content)

    def add(self, content: str, digest: str) -> None:
        """Add the digest of a content that was read."""
        self._fresh[content] = digest

    def save(self) -> None:
        """Write the cache file."""
        if self._fresh:
            with Journal(self._path) as journal:
                for content, digest in self._fresh.items():
                    journal.append({"schema": 1, "content": content, "digest": digest})
            self._load().update(self._fresh)
            self._fresh = {}

    def _load(self) -> dict[str, str]:
        if self._known is None:
            check_private_file(self._path, "the cached digests of the remote")
            self._known = {
                str(record.get("content")): str(record.get("digest"))
                for record in read_records(self._path, is_cache=True)
            }
        return self._known
