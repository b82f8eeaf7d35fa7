"""What this account remembers of a site's cache: marks after its own look, contents of what came from elsewhere, origins."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import Any

from hibali.ledger import Journal, ledger_folder, read_records


class CacheBook:
    """The book of one site, in the ledger of this machine; read once, and only when somebody asks."""

    def __init__(self, site: str) -> None:
        self._path = ledger_folder("runs", "cache") / f"{site}.entries"

    def mark_of(self, path: bytes) -> str | None:
        """What an entry looked like after it was hashed."""
        return self._marks.get(_text(path))

    def source_of(self, path: bytes) -> str:
        """Where an entry came from, as it was written last; "" where nobody knows."""
        return self._sources.get(_text(path), "")

    def content_of(self, origin: str) -> str | None:
        """The sha256 of a file that came from elsewhere, by the digest of its origin."""
        return self._contents.get(origin)

    def note_mark(self, path: bytes, mark: str, source: str = "") -> None:
        """An entry is as it should be, and looks so."""
        text = _text(path)
        self._marks[text] = mark
        record = {"kind": "cached", "path": text, "mark": mark}
        if source:
            self._sources[text] = source
            record["source"] = source
        self._append(record)

    def note_content(self, origin: str, digest: str) -> None:
        """A file from elsewhere has that content."""
        self._contents[origin] = digest
        self._append({"kind": "named", "origin": origin, "digest": digest})

    def _append(self, record: dict[str, Any]) -> None:
        with contextlib.closing(Journal(self._path)) as journal:
            journal.append({"schema": 1, **record})

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        return list(read_records(self._path))

    @cached_property
    def _marks(self) -> dict[str, str]:
        return {str(each["path"]): str(each["mark"]) for each in self._records if "mark" in each}

    @cached_property
    def _sources(self) -> dict[str, str]:
        return {str(each["path"]): str(each["source"]) for each in self._records if "source" in each}

    @cached_property
    def _contents(self) -> dict[str, str]:
        return {str(each["origin"]): str(each["digest"]) for each in self._records if "origin" in each}


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
