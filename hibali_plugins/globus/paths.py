"""Map paths of a site to its collection, and build Globus documents (Transfer API, "Task Submission")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hibali.config.model import GLOBUS_DEADLINE_SECONDS

LINE_ENDS = (b"\n", b"\r")  # not allowed in paths of a submission


def below(root: str, path: bytes) -> str:
    """Return the collection's path of a name below `root`; raise UnicodeDecodeError if it is not UTF-8."""
    return root.rstrip("/") + "/" + path.decode("utf-8") if path else root


def is_supported_path(path: bytes) -> bool:
    """Return whether Globus supports this name: UTF-8 without line breaks."""
    if any(end in path for end in LINE_ENDS):
        return False
    try:
        path.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


CHECKSUM = 3  # the sync level that transfers only files with different checksums


@dataclass(frozen=True, slots=True)
class CollectionPair:
    """The ids of two collections, and the root folders in them.

    `deadline_seconds` is the time limit for each task between them, `most_tasks` the limit of the account's active
    transfers, 0 for none.
    """

    source: str
    source_root: str
    target: str
    target_root: str
    deadline_seconds: float = GLOBUS_DEADLINE_SECONDS
    most_tasks: int = 0

    def key_fields(self) -> list[str]:
        """Return the values that identify the tasks between these folders."""
        return [self.source, self.source_root, self.target, self.target_root]


@dataclass(frozen=True, slots=True)
class Piece:
    """A file of a task: its paths in both collections, and its recorded sha256 in hexadecimal, if any."""

    source: str
    target: str
    digest: str | None = None


def transfer_body(
    ends: CollectionPair,
    pieces: Iterable[Piece],
    *,
    submission: str,
    label: str,
    sync_level: int | None = None,
) -> dict[str, Any]:
    """Build a transfer document of single files: exactly those of the plan, without filter rules.

    Checksum verification is explicit, because an account's default may differ. Missing or denied source files
    do not stop the others, and an exceeded quota ends the task instead of retries for days.
    """
    body: dict[str, Any] = {
        "DATA_TYPE": "transfer",
        "submission_id": submission,
        "source_endpoint": ends.source,
        "destination_endpoint": ends.target,
        "label": label,
        "verify_checksum": True,
        "preserve_timestamp": True,
        "skip_source_errors": True,
        "fail_on_quota_errors": True,
        "notify_on_succeeded": False,
        "notify_on_failed": False,
        "notify_on_inactive": False,
        "DATA": [_item(piece) for piece in pieces],
    }
    if sync_level is not None:
        body["sync_level"] = sync_level
    return body


def _item(piece: Piece) -> dict[str, Any]:
    item: dict[str, Any] = {
        "DATA_TYPE": "transfer_item",
        "source_path": piece.source,
        "destination_path": piece.target,
        "recursive": False,
    }
    if piece.digest is not None:
        item |= {"external_checksum": piece.digest, "checksum_algorithm": "SHA256"}
    return item


def delete_body(collection: str, paths: Iterable[str], *, submission: str, label: str) -> dict[str, Any]:
    """Build a deletion document for these names; absent ones succeed. Folders need a separate document."""
    return {
        "DATA_TYPE": "delete",
        "submission_id": submission,
        "endpoint": collection,
        "label": label,
        "recursive": False,
        "ignore_missing": True,
        "interpret_globs": False,
        "notify_on_succeeded": False,
        "notify_on_failed": False,
        "notify_on_inactive": False,
        "DATA": [{"DATA_TYPE": "delete_item", "path": path} for path in paths],
    }


def label_of(operation: str, key: str) -> str:
    """Return the task's label in Globus; `key` identifies its owner. Only letters, digits, spaces and `-`."""
    return f"hibali {operation} {key[:16]}"


def deadline_after(seconds: float, now: datetime | None = None) -> str:
    """Return the time (ISO 8601) when Globus ends an unfinished task; `now` defaults to the current time."""
    return f"{(now or datetime.now(UTC)) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S+00:00}"
