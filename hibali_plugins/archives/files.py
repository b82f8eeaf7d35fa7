"""Describe the files of a dataset, as its archive lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from string import hexdigits
from typing import Any, NamedTuple

from hibali.errors import IncompleteError
from hibali.text import printable
from transfers.model.entry import Entry, Kind
from transfers.model.facts import unsafe_component
from transfers.model.units import Problem

MOST_FILES = 1_000_000
_DIGITS = {"sha512": 128, "sha256": 64, "gitsha1": 40, "sha1": 40, "md5": 32}  # the best one first


class ArchivedFile(NamedTuple):
    """A file: its path in the dataset, its size, where its content is, and when it or its version was made.

    `sha256` is the archive's own one, "" for none; `checksum` its best other one, as `ALGORITHM:DIGITS`.
    """

    path: bytes
    size: int
    address: str
    mtime_ns: int = 0
    checksum: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one version of a dataset.

    Attributes:
        version: The version, as the archive names it.
        doi: The DOI of exactly this version; "" where the archive has none.
        files: By path.
        known: Files that cannot be read, and why.
        problems: The same for names without a known size, so that no filter can tell whether they are wanted.
    """

    version: str
    doi: str = ""
    files: dict[bytes, ArchivedFile] = field(default_factory=dict)
    known: list[tuple[Entry, Problem]] = field(default_factory=list)
    problems: list[tuple[bytes, Problem]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many names the archive has."""
        return len(self.files) + len(self.known) + len(self.problems)

    def add(self, file: ArchivedFile, subject: str) -> None:
        """Add a file. Raise `IncompleteError` for a path that is no path below the dataset (S1), and for a second file there."""
        reason = unsafe_component(file.path) or _not_unicode(file.path)
        if reason is None and file.path in self.files:
            reason = "the archive lists it twice"
        if reason is None and len(self.files) >= MOST_FILES:
            reason = f"the dataset has more than {MOST_FILES} files"
        if reason is not None:
            raise IncompleteError(
                "listing-violation",
                f"the listing cannot be trusted: {reason}",
                subject=f"{subject}:{printable(file.path)}",
                hint="Report it to the archive. Nothing was changed.",
            )
        self.files[file.path] = file

    def leave_out(self, path: bytes, code: str, message: str, size: int | None) -> None:
        """Note a name that cannot be read."""
        problem = Problem(code, message)
        if size is None or unsafe_component(path):
            self.problems.append((path, problem))
        else:
            self.known.append((Entry(path, Kind.FILE, size), problem))


def _not_unicode(path: bytes) -> str | None:
    try:
        path.decode()
    except UnicodeDecodeError:
        return "it is not UTF-8"
    return None


def text_in(record: Any, *names: str) -> str:
    """Return the text at these nested names of a JSON object, "" if there is none."""
    found = value_in(record, *names)
    return found if isinstance(found, str) else ""


def value_in(record: Any, *names: str) -> Any:
    """Return the value at these nested names of a JSON object, None if there is none."""
    for name in names:
        record = record.get(name) if isinstance(record, Mapping) else None
    return record


def size_in(record: Any, *names: str) -> int:
    """Return the size at these names. Raise `ValueError`."""
    found = size_or_none(record, *names)
    if found is None:
        raise ValueError
    return found


def size_or_none(record: Any, *names: str) -> int | None:
    """Return the size at these names, None if there is none. Zenodo writes some as 625.0."""
    found = value_in(record, *names)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return int(found) if is_number and 0 <= found < 2**63 and found == int(found) else None


def time_in(record: Any, *names: str) -> int:
    """Return the time at these names in nanoseconds since 1970, in whole seconds, 0 if there is none."""
    try:
        found = datetime.fromisoformat(text_in(record, *names))
    except ValueError:
        return 0
    return max(0, int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())) * 10**9


def checksums(pairs: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return the checksums that hibali can compare, as `ArchivedFile` has them, from pairs of an algorithm's name and the digits."""
    found: dict[str, str] = {}
    for name, digits in pairs:
        key, value = name.lower().replace("-", ""), str(digits or "").lower()
        if len(value) == _DIGITS.get(key) and not set(value) - set(hexdigits):
            found[key] = value
    others = [f"{key}:{found[key]}" for key in _DIGITS if key in found and key != "sha256"]
    return {"sha256": found.get("sha256", ""), "checksum": others[0] if others else ""}


def path_in(*parts: str) -> bytes:
    """Return the path of these parts; empty ones are left out."""
    return "/".join(part.strip("/") for part in parts if part.strip("/")).encode("utf-8", "surrogatepass")
