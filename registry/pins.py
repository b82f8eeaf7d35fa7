"""Which digest each name@version has, and its image, written down beside the catalogue and not in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hibali.folders import check_private_file
from hibali.ledger import Journal, now, read_more_records

_Key = tuple[str, str]


class Pins:
    """An append-only record; the first pin of a version, and of its image, holds until the version is taken back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._read_bytes = 0
        self._pins: dict[_Key, str] = {}
        self._images: dict[_Key, dict[str, Any]] = {}

    def read(self) -> dict[_Key, str]:
        """Digest by name and version, in the order of adding; raises `RefusedError` where others could write them."""
        return dict(self._fold()[0])

    def images(self) -> dict[_Key, str]:
        """The digest of the archive of each version's image, `sha256:HEX`, where it has one; raises like `read`."""
        return {key: str(found.get("digest")) for key, found in self._fold()[1].items()}

    def image(self, name: str, version: str) -> tuple[str, str] | None:
        """The digest of a version's image and the sha256 of its record; None where it has none."""
        found = self._fold()[1].get((name, version))
        return None if found is None else (str(found.get("digest")), str(found.get("record")))

    def add(self, name: str, version: str, digest: str) -> None:
        """Pin it, unless it is pinned to this digest already."""
        if self.read().get((name, version)) != digest:
            self._append("pin", name, version, digest=digest)

    def add_image(self, name: str, version: str, digest: str, record: str) -> bool:
        """Pin its image; False where the pin of another one was first."""
        if self.image(name, version) is None:
            self._append("image", name, version, digest=digest, record=record)
        return self.image(name, version) == (digest, record)

    def take_back(self, name: str, version: str) -> None:
        """Whatever comes under this name and version next is pinned anew."""
        digest = self.read().get((name, version))
        if digest is not None:
            self._append("unpin", name, version, digest=digest)

    def _fold(self) -> tuple[dict[_Key, str], dict[_Key, dict[str, Any]]]:
        """What is pinned now: versions, and the records of images. Of a file that has grown the rest is read."""
        check_private_file(self._path, "the record of pins")
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return {}, {}
        if found.st_ino != self._inode or found.st_size < self._read_bytes:
            self._inode, self._read_bytes = found.st_ino, 0
            self._pins.clear()
            self._images.clear()
        if found.st_size > self._read_bytes:
            records, self._read_bytes = read_more_records(self._path, self._read_bytes)
            for record in records:
                self._take(record)
        return self._pins, self._images

    def _take(self, record: dict[str, Any]) -> None:
        key = (str(record.get("name")), str(record.get("version")))
        kind = record.get("kind")
        if kind == "pin":
            self._pins.setdefault(key, str(record.get("digest")))
        elif kind == "image":
            self._images.setdefault(key, record)
        elif kind == "unpin":
            self._pins.pop(key, None)
            self._images.pop(key, None)

    def _append(self, kind: str, name: str, version: str, **more: str) -> None:
        record = {"kind": kind, "name": name, "version": version, **more}
        with Journal(self._path) as journal:
            journal.append({"schema": 1, **record, "at": now()}, durable=True)
