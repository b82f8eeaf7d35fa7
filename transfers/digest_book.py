"""Digests that an earlier call computed, each good for as long as the files it was computed from are what they were."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from hibali.ledger import Journal, ledger_folder, now, read_records, write_atomic
from hibali.strict_json import line_of_json
from hibali.text import path_fields, path_from_fields
from transfers.entry import Entry

_SLACK = 10_000  # so many lines may be overtaken before the file is written anew
_SHA256 = re.compile(r"[0-9a-f]{64}")


class DigestBook:
    """One append-only file in the ledger, named by what it is about; whatever is wrong in it costs a hashing, never truth.

    A line counts while the identity of every file it speaks of is the same (S5): size, mtime, ctime, device and
    inode, or the ETag. Files of a store that tells neither are never in it.
    """

    def __init__(self, folder: str, question: Any, *, keep: bool) -> None:
        """`question` is any JSON value that names the place and what was asked; without `keep` it begins anew."""
        name = hashlib.sha256(line_of_json({"question": question}).encode("ascii")).hexdigest()[:32]
        self._path = ledger_folder(folder) / f"{name}.jsonl"
        self._known: dict[bytes, tuple[str, str]] = {}
        self.header: dict[str, Any] = {}
        if keep:
            lines = 0
            for record in read_records(self._path):
                lines += 1
                self._take(record)
            if lines > 2 * len(self._known) + _SLACK:
                self._compact()
        else:
            self._path.unlink(missing_ok=True)
        self._journal = Journal(self._path)

    def _compact(self) -> None:
        """Leave out what later lines overtook."""
        records = [self.header] if self.header else []
        for path, (identity, digest) in self._known.items():
            records.append({**path_fields(path), "identity": identity, "sha256": digest})
        with contextlib.suppress(OSError):
            write_atomic(self._path, "".join(f"{line_of_json(r)}\n" for r in records).encode("ascii"))

    def begin(self, fields: dict[str, Any]) -> None:
        """Write what a later call has to know to go on; it finds the last such line in `header`."""
        self.header = {"kind": "begun", "at": now(), **fields}
        self._journal.append(self.header)

    @property
    def empty(self) -> bool:
        """Whether nothing is known."""
        return not self._known

    def _take(self, record: dict[str, Any]) -> None:
        try:
            if record.get("kind") == "begun":
                self.header = record
            elif _SHA256.fullmatch(record["sha256"]):
                self._known[path_from_fields(record)] = (str(record["identity"]), record["sha256"])
        except (KeyError, TypeError, ValueError):
            return

    def find(self, entries: Iterable[Entry]) -> str | None:
        """The sha256 of these files of equal content (mostly one), if each is still what it was."""
        listed = list(entries)
        known = self._known.get(listed[0].path)
        return known[1] if known is not None and known[0] == _identity(listed) else None

    def add(self, entries: Iterable[Entry], digest: str) -> None:
        """Keep what was computed now; `entries` are as they were listed before."""
        listed = list(entries)
        identity = _identity(listed)
        if identity is not None:
            self._journal.append({**path_fields(listed[0].path), "identity": identity, "sha256": digest})

    def close(self) -> None:
        """Keep it for the next call; safe to call twice."""
        self._journal.close()

    def discard(self) -> None:
        """All is done: nothing is left to go on with."""
        self._journal.close()
        self._path.unlink(missing_ok=True)


def _identity(entries: list[Entry]) -> str | None:
    """The identities of all, as one word; None where a store tells too little."""
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
