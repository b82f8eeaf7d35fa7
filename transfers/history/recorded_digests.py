"""Look up recorded digests, and repair the records that a killed operation did not write."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.documents import line_of_json
from hibali.files import write_atomic
from hibali.ledger import Journal, ledger_folder, now, read_records
from hibali.locations import Location
from hibali.text import path_fields, path_from_fields
from transfers.model.entry import Entry

_SLACK = 10_000  # outdated lines before the file is rewritten
_SHA256 = re.compile(r"[0-9a-f]{64}")
# the begin of the line of a file whose name is written in ASCII without escapes (hibali.text.path_fields)
_PLAIN_LINE = re.compile(
    rb'{"kind":"(?:moved|recorded|linked|deleted)","path":"([^"\\]*)","(?:entry|same_as)"'
)


class DigestCache:
    """A file of digests in the ledger; if damaged, files are hashed again, never a wrong digest used.

    A line is valid while the identity of each of its files is the same (S5): size, mtime, ctime, device and
    inode, or the ETag. Files of a store that has neither are never in it.
    """

    def __init__(self, folder: str, key: Any, *, keep: bool) -> None:
        """Open the book for `key`, any JSON value as its key; without `keep` it starts empty."""
        name = hashlib.sha256(line_of_json({"question": key}).encode("ascii")).hexdigest()[:32]
        self._path = ledger_folder(folder) / f"{name}.jsonl"
        self._known: dict[bytes, tuple[str, str]] = {}
        self.header: dict[str, Any] = {}
        if keep:
            lines = 0
            for record in read_records(self._path, is_cache=True):
                lines += 1
                self._read(record)
            if lines > 2 * len(self._known) + _SLACK:
                self._compact()
        else:
            self._path.unlink(missing_ok=True)
        self._journal = Journal(self._path)

    def _compact(self) -> None:
        """Rewrite the file without outdated lines."""
        records = [self.header] if self.header else []
        for path, (identity, digest) in self._known.items():
            records.append({**path_fields(path), "identity": identity, "sha256": digest})
        with contextlib.suppress(OSError):
            write_atomic(self._path, "".join(f"{line_of_json(r)}\n" for r in records).encode("ascii"))

    def begin(self, fields: dict[str, Any]) -> None:
        """Write the fields with which a later operation resumes; it finds the last such line in `header`."""
        self.header = {"kind": "begun", "at": now(), **fields}
        self._journal.append(self.header)

    @property
    def empty(self) -> bool:
        """Whether no digest is known."""
        return not self._known

    def _read(self, record: dict[str, Any]) -> None:
        try:
            if record.get("kind") == "begun":
                self.header = record
            elif _SHA256.fullmatch(record["sha256"]):
                self._known[path_from_fields(record)] = (str(record["identity"]), record["sha256"])
        except (KeyError, TypeError, ValueError):
            return

    def find(self, entries: Iterable[Entry]) -> str | None:
        """Return the sha256 of these files of equal content (mostly one), if none of them changed."""
        listed = list(entries)
        known = self._known.get(listed[0].path)
        return known[1] if known is not None and known[0] == _identity(listed) else None

    def add(self, entries: Iterable[Entry], digest: str) -> None:
        """Record a computed digest; `entries` are as they were listed before it was computed."""
        listed = list(entries)
        identity = _identity(listed)
        if identity is not None:
            self._journal.append({**path_fields(listed[0].path), "identity": identity, "sha256": digest})

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._journal.close()

    def discard(self) -> None:
        """Delete the file: there is nothing left to resume."""
        self._journal.close()
        self._path.unlink(missing_ok=True)


def _identity(entries: list[Entry]) -> str | None:
    """Return one hash of the identities of all; None if a store reports too little."""
    parts = list(_parts(entries))
    if None in parts:
        return None
    return hashlib.sha256(line_of_json({"files": parts}).encode("ascii")).hexdigest()[:32]


def _parts(entries: list[Entry]) -> Iterator[list[Any] | None]:
    for entry in entries:
        if not entry.etag and not (entry.inode and entry.ctime_ns):
            yield None
            continue
        yield [entry.size, entry.mtime_ns, entry.ctime_ns, entry.device, entry.inode, entry.etag]


@dataclass(frozen=True, slots=True)
class Expected:
    """The record of a committed file: its sha256 in hexadecimal, size, and other facts."""

    digest: str
    size: int
    mtime_ns: int = 0
    mode: int = -1
    etag: str | None = None
    inode: int = 0


def recorded_digests(
    location: Location, root_path: bytes, wanted: set[bytes] | None = None
) -> dict[bytes, Expected]:
    """Return the digests by path from all operations that wrote at, above or below `root_path`, oldest first.

    Paths are relative to `root_path`, the root as its store knows it; b"" is a file with that name. With `wanted`,
    only the lines of these paths are parsed, so that time and memory are small for few of many files; a further
    name of a file is then found only if its first name is wanted, too.
    """
    known: dict[bytes, Expected] = {}
    prefix: tuple[bytes, bytes] | None = None

    def skips(line: bytes) -> bool:
        if wanted is None or prefix is None:
            return False
        found = _PLAIN_LINE.match(line)
        return found is not None and relative_path(found[1], *prefix) not in wanted

    for journal in _journals_at(location, root_path):
        records = read_records(journal, skips=skips)
        prefix = None
        renames = False
        for record in records:
            if record.get("kind") == "place":
                same = record.get("site") == location.site.name and record.get("bucket") == location.bucket
                prefix = relation(path_from_fields(record, "place"), root_path) if same else None
                if prefix is None and not renames:
                    break
            elif record.get("kind") == "operation":
                renames = record.get("operation") == "mv"  # has a second place: the former name
            elif prefix is not None and record.get("kind") == "empty":
                _forget(known, *prefix)
            elif prefix is not None:
                _fold(known, record, *prefix, wanted)
    return known


def _journals_at(location: Location, root_path: bytes) -> list[Path]:
    from transfers.history.index import journals_at  # start-up: new targets need no records
    from transfers.history.operations import OperationRoot  # start-up: see above

    return journals_at(OperationRoot(location.site.name, location.bucket, root_path))


def relation(place: bytes, wanted: bytes) -> tuple[bytes, bytes] | None:
    """Return the prefixes to add to and remove from paths below `place` to make them relative to `wanted`.

    None if both are unrelated.
    """
    place, wanted = place.rstrip(b"/"), wanted.rstrip(b"/")
    if place == wanted:
        return b"", b""
    if not wanted or place.startswith(wanted + b"/"):
        return place[len(wanted) :].lstrip(b"/") + b"/", b""
    if not place or wanted.startswith(place + b"/"):
        return b"", wanted[len(place) :].lstrip(b"/")
    return None


def _forget(known: dict[bytes, Expected], before: bytes, below: bytes) -> None:
    """Remove earlier records of a root that was found empty."""
    for path in [path for path in known if below or path.startswith(before)]:
        del known[path]


def relative_path(path: bytes, before: bytes, below: bytes) -> bytes | None:
    """Return a recorded path relative to the requested root; None for one that is not in it."""
    if below:
        if path == below:
            path = b""
        elif path.startswith(below + b"/"):
            path = path[len(below) + 1 :]
        else:
            return None
    return before + path


def _fold(
    known: dict[bytes, Expected],
    record: dict[str, Any],
    before: bytes,
    below: bytes,
    wanted: set[bytes] | None = None,
) -> None:
    kind = record.get("kind")
    if kind not in {"moved", "recorded", "linked", "deleted"}:
        return
    path = relative_path(path_from_fields(record), before, below)
    if path is None or (wanted is not None and path not in wanted):
        return
    if kind == "linked":
        first = known.get(relative_path(path_from_fields(record, "same_as"), before, below) or b"")
        known.pop(path, None)
        if first is not None:
            known[path] = first
    elif kind == "deleted" or not record.get("sha256"):
        known.pop(path, None)
    else:
        details = (int(record.get("mtime_ns") or 0), int(record.get("mode", -1)), record.get("etag"))
        inode = int(record.get("inode") or 0)
        known[path] = Expected(str(record["sha256"]), int(record["size"]), *details, inode)


def moved_by(operation: str) -> dict[bytes, Expected] | None:
    """Return what an operation moved; None if unknown, or if it found files already there."""
    moved: dict[bytes, Expected] = {}
    receipt: dict[str, Any] = {}
    for record in read_records(ledger_folder("operations") / f"{operation}.jsonl"):
        if record.get("kind") == "receipt":
            receipt = record
        _fold(moved, record, b"", b"")
    return moved if receipt.get("files") == len(moved) and receipt.get("files_kept") == 0 else None
