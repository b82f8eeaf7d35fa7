"""Which digest each name@version has, written down beside the catalogue and not in it."""

from __future__ import annotations

from pathlib import Path

from hibali.folders import check_private_file
from hibali.ledger import Journal, now, read_records


class Pins:
    """An append-only record; the first pin of a version holds until it is taken back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[tuple[str, str], str]:
        """Digest by name and version, in the order of adding; raises `RefusedError` where others could write them."""
        check_private_file(self._path, "the record of pins")
        pins: dict[tuple[str, str], str] = {}
        for record in read_records(self._path):
            key = (str(record.get("name")), str(record.get("version")))
            if record.get("kind") == "pin":
                pins.setdefault(key, str(record.get("digest")))
            elif record.get("kind") == "unpin":
                pins.pop(key, None)
        return pins

    def add(self, name: str, version: str, digest: str) -> None:
        """Pin it, unless it is pinned to this digest already."""
        if self.read().get((name, version)) != digest:
            self._append("pin", name, version, digest)

    def take_back(self, name: str, version: str) -> None:
        """Whatever comes under this name and version next is pinned anew."""
        digest = self.read().get((name, version))
        if digest is not None:
            self._append("unpin", name, version, digest)

    def _append(self, kind: str, name: str, version: str, digest: str) -> None:
        record = {"kind": kind, "name": name, "version": version, "digest": digest}
        with Journal(self._path) as journal:
            journal.append({"schema": 1, **record, "at": now()}, durable=True)
