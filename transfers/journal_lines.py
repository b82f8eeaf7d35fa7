"""Events as the lines of an operation's journal, from which `record` reads what is known of a place."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from hibali.events import Deleted, Event, Failed, Grown, Linked, Moved
from hibali.ledger import Journal, ledger_folder, now
from hibali.locations import Location
from hibali.text import path_fields
from transfers.receipt import Receipt


def open_journal(receipt: Receipt, stack: ExitStack) -> Journal:
    """The journal of a call that begins now, closed with `stack`. Raises `RefusedError`: no ledger, no start."""
    journal = stack.enter_context(Journal(ledger_folder("operations") / f"{receipt.id}.jsonl"))
    record = {
        "schema": 1,
        "kind": "operation",
        "id": receipt.id,
        "operation": receipt.operation,
        "at": now(),
    }
    journal.append({**record, "source": receipt.source, "target": receipt.target}, durable=True)
    return journal


def place_line(location: Location, where: bytes) -> dict[str, Any]:
    """The line that says where all paths behind it are."""
    place = path_fields(where, "place")
    return {"kind": "place", "site": location.site.name, "bucket": location.bucket, **place}


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
