"""Digests of descriptors that lay at a remote, by what identifies their content there, so that they are read once."""

from __future__ import annotations

from pathlib import Path

from hibali.folders import check_private_file
from hibali.ledger import Journal, read_records


class Seen:
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
