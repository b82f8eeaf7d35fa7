"""What this machine has seen of a bucket: metadata of objects by (key, ETag, size, LastModified)."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from pathlib import Path
from typing import Any

from hibali.folders import private_folder, state_folder
from hibali.ledger import Journal, read_records, write_atomic
from hibali.strict_json import line_of_json
from hibali.text import path_from_fields
from transfers.stores.s3_listing import Listed
from transfers.stores.s3_manifest import Known, known_of, record_of

_SLACK = 10_000  # so many lines may be out of date before the file is written anew


class Cache:
    """One append-only file for one root; whatever is wrong with it costs questions, never truth. Threads may share it."""

    def __init__(self, site: str, endpoint: str, bucket: str, root: bytes) -> None:
        words = b"\n".join((endpoint.encode(), bucket.encode(), root))
        folder = private_folder(private_folder(state_folder() / "sites") / site)
        self._path: Path = folder / f"{hashlib.sha256(words).hexdigest()[:32]}.jsonl"
        self._known: dict[bytes, tuple[str, Known]] | None = None
        self._journal: Journal | None = None
        self._lock = threading.Lock()

    def find(self, listed: Listed) -> Known | None:
        """What a look at this very object said before."""
        modified, known = self._load().get(listed.path, ("", None))
        if known is None or (known.etag, known.size, modified) != (listed.etag, listed.size, listed.modified):
            return None
        return known

    def add(self, listed: Listed, known: Known) -> None:
        """Keep what a look at this object said."""
        self._load()[listed.path] = (listed.modified, known)
        self._append({**record_of(listed.path, known), "modified": listed.modified})

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _append(self, record: dict[str, Any]) -> None:
        with self._lock:
            if self._journal is None:
                self._journal = Journal(self._path)
            self._journal.append(record)

    def _load(self) -> dict[bytes, tuple[str, Known]]:
        if self._known is not None:
            return self._known
        self._known = {}
        count = 0
        with contextlib.suppress(OSError):
            for record in read_records(self._path):
                count += 1
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    _take(self._known, record)
        if count > 2 * len(self._known) + _SLACK:
            self._compact(self._known)
        return self._known

    def _compact(self, known: dict[bytes, tuple[str, Known]]) -> None:
        lines = [line_of_json({**record_of(p, k), "modified": m}) for p, (m, k) in known.items()]
        with contextlib.suppress(OSError):
            write_atomic(self._path, "".join(f"{line}\n" for line in lines).encode("ascii"))


def _take(known: dict[bytes, tuple[str, Known]], record: dict[str, Any]) -> None:
    known[path_from_fields(record, "key")] = (str(record["modified"]), known_of(record))
