"""Remember a sharded transfer on this machine, so that the same command resumes it after any interruption."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hibali.documents import canonical_digest
from hibali.files import read_regular, write_atomic
from hibali.ledger import ledger_folder
from hibali.locations import Location
from hibali.locks import FolderLock, acquire_lock
from hibali.text import path_fields, path_from_fields
from transfers.model.rules import Rules

_NAME = "transfer.json"
_BYTES = 1 << 20


@dataclass(slots=True)
class Begun:
    """A transfer whose files are at its site.

    Attributes:
        folder: its folder there.
        staged: whether all its files are written.
        token: the token of the lock of the target, empty without one.
        attempt: the number of the last attempt, from 1; 0 before the first.
        run: the run of the last attempt.
        shards: the shards of that attempt.
    """

    folder: bytes
    staged: bool = False
    token: str = ""
    attempt: int = 0
    run: str = ""
    shards: list[int] = field(default_factory=list)

    def to_record(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "schema": 1,
            **path_fields(self.folder, "folder"),
            "staged": self.staged,
            "token": self.token,
            "attempt": self.attempt,
            "run": self.run,
            "shards": self.shards,
        }


class BegunFile:
    """The record of the transfer between two places with certain rules, and its lock."""

    def __init__(self, source: Location, target: Location, rules: Rules, site: str) -> None:
        """Lock the record. Raises `TryLaterError` while the same command runs."""
        key = canonical_digest(
            {"source": source.text, "target": target.text, "rules": repr(rules), "site": site}
        )
        self._folder = ledger_folder("nodes", key[:32])
        self._lock: FolderLock = acquire_lock(self._folder)

    @property
    def _path(self) -> Path:
        return self._folder / _NAME

    def read(self) -> Begun | None:
        """Return the unfinished transfer, None if there is none."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            record = json.loads(read_regular(self._path, _BYTES))
            return Begun(
                path_from_fields(record, "folder"),
                bool(record["staged"]),
                str(record["token"]),
                int(record["attempt"]),
                str(record["run"]),
                [int(shard) for shard in record["shards"]],
            )
        return None

    def write(self, begun: Begun) -> None:
        """Record the transfer durably."""
        write_atomic(self._path, json.dumps(begun.to_record()).encode("ascii") + b"\n")

    def forget(self) -> None:
        """Remove the record: the transfer has ended."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()
