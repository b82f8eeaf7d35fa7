"""What this machine has seen of a bucket: metadata of objects by (key, ETag, size, LastModified), uploads under way."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.folders import private_folder, state_folder
from hibali.ledger import Journal, read_records, write_atomic
from hibali.strict_json import line_of_json
from hibali.text import path_fields, path_from_fields
from transfers.agent.lease import boot_identifier, process_start
from transfers.stores.s3_listing import Listed
from transfers.stores.s3_manifest import Known, known_of, record_of

_SLACK = 10_000  # so many lines may be out of date before the file is written anew


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that was begun: key below the root, and the server's id for it."""

    path: bytes
    identifier: str


class Cache:
    """One append-only file for one root; whatever is wrong with it costs questions, never truth. Threads may share it."""

    def __init__(self, site: str, endpoint: str, bucket: str, root: bytes) -> None:
        words = b"\n".join((endpoint.encode(), bucket.encode(), root))
        folder = private_folder(private_folder(state_folder() / "sites") / site)
        self._path: Path = folder / f"{hashlib.sha256(words).hexdigest()[:32]}.jsonl"
        self._known: dict[bytes, tuple[str, Known]] | None = None
        self._uploads: dict[str, tuple[Upload, bool, dict[str, Any]]] = {}
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

    def begin(self, upload: Upload) -> None:
        """Durable before its first part is sent, so that the next call can clear it away."""
        record = {"upload": upload.identifier, **path_fields(upload.path, "key"), "by": _myself()}
        self._append(record, durable=True)

    def end(self, upload: Upload) -> None:
        """It was completed or aborted."""
        self._append({"ended": upload.identifier})

    def orphans(self) -> list[Upload]:
        """Uploads of processes of this machine that are gone."""
        self._load()
        return [upload for upload, dead, _ in self._uploads.values() if dead]

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _append(self, record: dict[str, Any], *, durable: bool = False) -> None:
        with self._lock:
            if self._journal is None:
                self._journal = Journal(self._path)
            self._journal.append(record, durable=durable)

    def _load(self) -> dict[bytes, tuple[str, Known]]:
        if self._known is not None:
            return self._known
        self._known = {}
        count = 0
        with contextlib.suppress(OSError):
            for record in read_records(self._path):
                count += 1
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._take(self._known, record)
        if count > 2 * len(self._known) + len(self._uploads) + _SLACK:
            self._compact(self._known)
        return self._known

    def _take(self, known: dict[bytes, tuple[str, Known]], record: dict[str, Any]) -> None:
        if "ended" in record:
            self._uploads.pop(record["ended"], None)
        elif "upload" in record:
            upload = Upload(path_from_fields(record, "key"), str(record["upload"]))
            self._uploads[upload.identifier] = (upload, _is_gone(record["by"]), record["by"])
        else:
            known[path_from_fields(record, "key")] = (str(record["modified"]), known_of(record))

    def _compact(self, known: dict[bytes, tuple[str, Known]]) -> None:
        lines = [line_of_json({**record_of(p, k), "modified": m}) for p, (m, k) in known.items()]
        for upload, _, owner in self._uploads.values():
            who = {"upload": upload.identifier, **path_fields(upload.path, "key"), "by": owner}
            lines.append(line_of_json(who))
        with contextlib.suppress(OSError):
            write_atomic(self._path, "".join(f"{line}\n" for line in lines).encode("ascii"))


def _myself() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "boot": boot_identifier(), "pid": pid, "start": process_start(pid)}


def _is_gone(process: dict[str, Any]) -> bool:
    """Whether a process of this host is provably gone; on another host (a shared home) nothing is provable."""
    if process.get("host") != socket.gethostname():
        return False
    return process.get("boot") != boot_identifier() or process.get("start") != process_start(
        int(process["pid"])
    )
