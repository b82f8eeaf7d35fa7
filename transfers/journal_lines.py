"""Events as the lines of an operation's journal, from which `record` reads what is known of a place."""

from __future__ import annotations

from typing import Any

from hibali.events import Deleted, Event, Failed, Grown, Linked, Moved
from hibali.text import path_fields


def journal_line(event: Event) -> dict[str, Any] | None:
    """The line that remembers this event; None for one that is only told."""
    match event:
        case Moved():
            return {
                "kind": "moved",
                **path_fields(event.path),
                "entry": event.kind,
                "size": event.size,
                "mtime_ns": event.mtime_ns,
                "mode": event.mode,
                "sha256": event.digest,
                "etag": event.etag,
                "proof": event.proof,
            }
        case Grown():
            return {
                "kind": "moved",  # what stands there by now, which is all that is asked of a place
                **path_fields(event.path),
                "entry": "file",
                "size": event.size,
                "mtime_ns": event.mtime_ns,
                "mode": event.mode,
                "sha256": event.digest,
                "etag": None,
                "proof": event.proof,
            }
        case Deleted():
            return {"kind": "deleted", **path_fields(event.path), "entry": event.kind}
        case Linked():
            return {"kind": "linked", **path_fields(event.path), **path_fields(event.same_as, "same_as")}
        case Failed():
            return {
                "kind": "failed",
                **path_fields(event.path),
                "code": event.code,
                "message": event.message,
            }
        case _:
            return None
