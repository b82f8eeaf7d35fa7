"""Map paths of a site to its collection, and build Globus documents (Transfer API, "Task Submission")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hibali.config.model import GLOBUS_DEADLINE_SECONDS, Site
from transfers.agent.identity import Identity
from transfers.model.identities import identity_of_keys


@dataclass(frozen=True, slots=True)
class TaskTimeouts:
    """The limits of tasks: seconds without progress (None: Globus decides); whether interruptions cancel."""

    give_up_after: float | None = None
    cancel_on_interrupt: bool = False


LINE_ENDS = (b"\n", b"\r")  # not allowed in paths of a submission


def path_in_collection(site: Site, path: str) -> str | None:
    """Map a path of the site's filesystem to its collection; return None if the collection lacks it.

    `path` is absolute and without `..`, or starts with `~`: the collection's home folder, for sites that only
    Globus reaches. The longest match in the site's `paths` applies; without `paths`, the paths are identical.
    """
    assert site.globus is not None
    if path == "~" or path.startswith("~/"):
        return f"/{path}" if site.kind == "globus" else None
    if not site.globus.paths:
        return path
    for site_path, collection_path in sorted(site.globus.paths.items(), key=lambda pair: -len(pair[0])):
        base = site_path.rstrip("/")
        if path == base or path.startswith(f"{base}/") or not base:
            rest = path[len(base) :].strip("/")
            return f"{collection_path.rstrip('/')}/{rest}" if rest else collection_path
    return None


def identity_of_collection(collection: str, path: str) -> Identity:
    """Return the identity of a path in the collection (see transfers.planning.overlap)."""
    return identity_of_keys(f"globus {collection.lower()}", path.encode("utf-8", "surrogateescape"))


def identity_at(site: Site, root_path: bytes) -> list[Identity]:
    """Return the identity of a path in the site's filesystem, if the site's collection contains it."""
    if site.globus is None:
        return []
    path = path_in_collection(site, root_path.decode("utf-8", "surrogateescape"))
    return [] if path is None else [identity_of_collection(site.globus.collection, path)]


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

    `deadline_seconds` is the time limit for each task between them.
    """

    source: str
    source_root: str
    target: str
    target_root: str
    deadline_seconds: float = GLOBUS_DEADLINE_SECONDS

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
    deadline: str,
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
        "deadline": deadline,
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


def delete_body(
    collection: str, paths: Iterable[str], *, submission: str, label: str, deadline: str
) -> dict[str, Any]:
    """Build a deletion document for these names; absent ones succeed. Folders need a separate document."""
    return {
        "DATA_TYPE": "delete",
        "submission_id": submission,
        "endpoint": collection,
        "label": label,
        "deadline": deadline,
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
