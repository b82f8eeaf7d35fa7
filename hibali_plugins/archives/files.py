"""Describe the files of a dataset, as its archive lists them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hibali.errors import IncompleteError
from hibali.text import printable
from transfers.model.facts import unsafe_component
from transfers.model.units import Problem

MOST_FILES = 1_000_000
_DIGITS = {"md5": 32, "sha256": 64, "gitsha1": 40}


class ArchivedFile(NamedTuple):
    """A file: its path in the dataset, its size, where its content is, and when it or its version was made.

    The archive has no more than `md5`, `sha256` and the id of a git blob, `gitsha1`, as its checksums; "" for none.
    """

    path: bytes
    size: int
    address: str
    mtime_ns: int = 0
    md5: str = ""
    sha256: str = ""
    gitsha1: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one version of a dataset.

    Attributes:
        version: The version, as the archive names it.
        doi: The DOI of exactly this version; "" where the archive has none.
        files: By path.
        problems: Names that cannot be read, and why.
    """

    version: str
    doi: str = ""
    files: dict[bytes, ArchivedFile] = field(default_factory=dict)
    problems: list[tuple[bytes, Problem]] = field(default_factory=list)

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

    def leave_out(self, path: bytes, code: str, message: str) -> None:
        """Note a name that cannot be read."""
        self.problems.append((path, Problem(code, message)))


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
    found = value_in(record, *names)
    if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
        return found
    raise ValueError


def time_in(record: Any, *names: str) -> int:
    """Return the time at these names in nanoseconds since 1970, in whole seconds, 0 if there is none."""
    try:
        found = datetime.fromisoformat(text_in(record, *names))
    except ValueError:
        return 0
    return max(0, int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())) * 10**9


def checksums(pairs: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return the checksums that hibali can compare, by their names in `ArchivedFile`, from pairs of an algorithm's name and the digits."""
    found = {}
    for name, digits in pairs:
        key, value = name.lower().replace("-", ""), str(digits or "").lower()
        if len(value) == _DIGITS.get(key) and re.fullmatch(r"[0-9a-f]+", value):
            found[key] = value
    return found


def path_in(*parts: str) -> bytes:
    """Return the path of these parts; empty ones are left out."""
    return "/".join(part.strip("/") for part in parts if part.strip("/")).encode("utf-8", "surrogatepass")
