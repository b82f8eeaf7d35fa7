"""Map paths of a site to its collection, and build Globus documents (Transfer API, "Task Submission")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hibali.config.model import GLOBUS_DEADLINE_SECONDS, Site
from transfers.agent.identity import Identity
from transfers.overlap import identity_of_keys


@dataclass(frozen=True, slots=True)
class TaskTimeouts:
    """With tasks: after how many seconds one that stands still is given up (None: when Globus does), and what an interruption does."""

    give_up_after: float | None = None
    cancel_on_interrupt: bool = False


LINE_ENDS = (b"\n", b"\r")  # no path of a submission may have one


def path_in_collection(site: Site, path: str) -> str | None:
    """Where the collection has what stands at `path` of the site's filesystem; None where it is outside of it.

    `path` is absolute and without `..`, or begins with `~`, which is the collection's own idea of home for a site that is
    reached by Globus alone. The longest of the site's `paths` counts; without any, both sides see the same paths.
    """
    assert site.globus is not None
    if path == "~" or path.startswith("~/"):
        return f"/{path}" if site.kind == "globus" else None
    if not site.globus.paths:
        return path
    for there, within in sorted(site.globus.paths.items(), key=lambda pair: -len(pair[0])):
        base = there.rstrip("/")
        if path == base or path.startswith(f"{base}/") or not base:
            rest = path[len(base) :].strip("/")
            return f"{within.rstrip('/')}/{rest}" if rest else within
    return None


def identity_of_collection(collection: str, path: str) -> Identity:
    """See transfers.overlap; `path` is in the collection."""
    return identity_of_keys(f"globus {collection.lower()}", path.encode("utf-8", "surrogateescape"))


def identity_at(site: Site, where: bytes) -> list[Identity]:
    """The same for `where` of a site's own filesystem, where the site has a collection that shows it."""
    if site.globus is None:
        return []
    path = path_in_collection(site, where.decode("utf-8", "surrogateescape"))
    return [] if path is None else [identity_of_collection(site.globus.collection, path)]


def below(root: str, path: bytes) -> str:
    """The path in the collection of a name below `root`; raises UnicodeDecodeError for one that Globus cannot be told."""
    return root.rstrip("/") + "/" + path.decode("utf-8") if path else root


def can_be_told(path: bytes) -> bool:
    """Whether Globus can be told this name: its API speaks UTF-8, and takes no line ends."""
    if any(end in path for end in LINE_ENDS):
        return False
    try:
        path.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


CHECKSUM = 3  # the sync level that moves only what has another checksum


@dataclass(frozen=True, slots=True)
class CollectionPair:
    """Two collections by their ids, and the folders in them that all names are below.

    `deadline_seconds`: how long Globus may work at a task between them.
    """

    source: str
    source_root: str
    target: str
    target_root: str
    deadline_seconds: float = GLOBUS_DEADLINE_SECONDS

    def words(self) -> list[str]:
        """What tells a call's tasks from those of others."""
        return [self.source, self.source_root, self.target, self.target_root]


@dataclass(frozen=True, slots=True)
class Piece:
    """One file of a task: its paths in both collections, and its sha256 in hexadecimal where it is on record."""

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
    """A transfer of single files: what goes is what the plan holds, so no filter rule could leave anything out.

    Checksums are asked for by name, because an account's own default may be otherwise. Files of the source that are missing
    or denied do not hold up the others, and a full quota ends it instead of being tried for days.
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
    """Deletion of these names; what is gone already is done. A folder goes only in a body of its own, when it is empty."""
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
    """What the task is called in Globus's own list; its end tells whose it is. Letters, digits, spaces and `-` only."""
    return f"hibali {operation} {key[:16]}"


def deadline_after(seconds: float, now: datetime | None = None) -> str:
    """The time, in ISO 8601, when Globus ends a task that it has not finished by then; `now` is the present by default."""
    return f"{(now or datetime.now(UTC)) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S+00:00}"
